-- Forgets what ended before some time, a piece at a time.
-- KEYS: the list, done or dead
-- ARGV: prefix of events, before, how many
local members = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', '(' .. ARGV[2], 'LIMIT', 0, ARGV[3])
for _, member in ipairs(members) do
    redis.call('DEL', ARGV[1] .. member)
    redis.call('ZREM', KEYS[1], member)
end
return #members
