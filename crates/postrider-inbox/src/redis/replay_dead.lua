-- Events that died up to some time are due at once.
-- KEYS: due, done, dead, bytes
-- ARGV: prefix of events, until, how many, now
local due, dead, bytes, prefix = KEYS[1], KEYS[3], KEYS[4], ARGV[1]
local members = redis.call('ZRANGEBYSCORE', dead, '-inf', ARGV[2], 'LIMIT', 0, ARGV[3])
for _, member in ipairs(members) do
    local event = prefix .. member
    redis.call('ZREM', dead, member)
    if redis.call('HGET', event, 'state') == '2' then
        redis.call('HSET', event, 'state', '0', 'attempts', '0')
        redis.call('HDEL', event, 'finished_at')
        redis.call('HINCRBY', event, 'fence', 1)
        redis.call('ZADD', due, ARGV[4], member)
        redis.call('INCRBY', bytes, redis.call('HGET', event, 'size'))
    end
end
return #members
