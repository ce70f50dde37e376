-- Writes what became of an event, if nobody else has taken it since.
-- KEYS: due, done, dead, bytes, the event
-- ARGV: member, fence, done | again | dead, when, reason, and for done: how long to keep it
local due, done, dead, bytes, event = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local member, what, at, reason = ARGV[1], ARGV[3], ARGV[4], ARGV[5]

if redis.call('HGET', event, 'fence') ~= ARGV[2] or redis.call('HGET', event, 'state') ~= '0' then return 0 end

-- First what takes no memory: after it, Redis lets a script write though it has no memory left.
redis.call('ZREM', due, member)
if what == 'again' then
    redis.call('HSET', event, 'reason', reason)
    redis.call('ZADD', due, at, member)
    return 1
end
redis.call('DECRBY', bytes, redis.call('HGET', event, 'size'))
-- The sizes of events that Redis threw away are still in it.
if redis.call('ZCARD', due) == 0 then redis.call('DEL', bytes) end
if what == 'done' then
    redis.call('HSET', event, 'state', '1', 'finished_at', at)
    redis.call('HDEL', event, 'body', 'headers')
    redis.call('ZADD', done, at, member)
    redis.call('PEXPIRE', event, ARGV[6])
else
    redis.call('HSET', event, 'state', '2', 'finished_at', at, 'reason', reason)
    redis.call('ZADD', dead, at, member)
end
return 1
