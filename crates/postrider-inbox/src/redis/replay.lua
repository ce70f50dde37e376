-- A dead event is due at once.
-- KEYS: due, done, dead, bytes, the event
-- ARGV: member, now
local due, dead, bytes, event = KEYS[1], KEYS[3], KEYS[4], KEYS[5]
if redis.call('HGET', event, 'state') ~= '2' then return 0 end
-- First what takes no memory: after it, Redis lets a script write though it has no memory left.
redis.call('ZREM', dead, ARGV[1])
redis.call('HSET', event, 'state', '0', 'attempts', '0')
redis.call('HDEL', event, 'finished_at')
redis.call('HINCRBY', event, 'fence', 1)
redis.call('ZADD', due, ARGV[2], ARGV[1])
redis.call('INCRBY', bytes, redis.call('HGET', event, 'size'))
return 1
