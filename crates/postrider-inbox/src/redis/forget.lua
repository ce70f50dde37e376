-- Forgets what ended before some time, a piece at a time.
-- KEYS: the list, done or dead
-- ARGV: prefix of events, before, how many, the state of what is listed there
local members = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', '(' .. ARGV[2], 'LIMIT', 0, ARGV[3])
for _, member in ipairs(members) do
    local event = ARGV[1] .. member
    if redis.call('HGET', event, 'state') == ARGV[4] then redis.call('DEL', event) end
    redis.call('ZREM', KEYS[1], member)
end
return #members
