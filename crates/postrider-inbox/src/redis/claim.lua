-- Takes events that are due, for as long as a lease.
-- KEYS: due, done, dead, bytes
-- ARGV: prefix of events, now, end of the lease, how many
local due, bytes, prefix = KEYS[1], KEYS[4], ARGV[1]
local claims = {}
for _, member in ipairs(redis.call('ZRANGEBYSCORE', due, '-inf', ARGV[2], 'LIMIT', 0, ARGV[4])) do
    local event = prefix .. member
    -- First what takes no memory: after it, Redis lets a script write though it has no memory left.
    redis.call('ZREM', due, member)
    -- Or else Redis has thrown it away for want of memory, and nobody knows its size.
    if redis.call('EXISTS', event) == 1 then
        redis.call('ZADD', due, ARGV[3], member)
        redis.call('HINCRBY', event, 'attempts', 1)
        redis.call('HINCRBY', event, 'fence', 1)
        claims[#claims + 1] = { member, redis.call('HGETALL', event) }
    end
end
if redis.call('ZCARD', due) == 0 then redis.call('DEL', bytes) end
return claims
