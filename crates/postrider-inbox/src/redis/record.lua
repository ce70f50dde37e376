-- Records an event and queues it, or changes nothing.
-- KEYS: due, done, dead, bytes, the event, and for an event with a place: its sequence
-- ARGV: member, received_at, size, events_max, bytes_max, headers, body
--       and for an event with a place: track before, track after, how long to keep it, ordering key, number, arrival
local due, done, dead, bytes, event, sequence = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local member, at, size = ARGV[1], ARGV[2], tonumber(ARGV[3])

if redis.call('EXISTS', event) == 1 then return 'duplicate' end

local queued = redis.call('ZCARD', due)
local held = tonumber(redis.call('GET', bytes) or '0')
if queued >= tonumber(ARGV[4]) or (queued > 0 and held + size > tonumber(ARGV[5])) then return 'full' end

if sequence then
    if (redis.call('GET', sequence) or '') ~= ARGV[8] then return 'moved' end
    redis.call('SET', sequence, ARGV[9], 'PX', ARGV[10])
    redis.call('HSET', event, 'ordering_key', ARGV[11], 'number', ARGV[12], 'arrival', ARGV[13])
end
redis.call('HSET', event, 'state', '0', 'received_at', at, 'size', ARGV[3], 'headers', ARGV[6], 'body', ARGV[7],
    'attempts', '0', 'fence', '0')
redis.call('ZADD', due, at, member)
redis.call('INCRBY', bytes, size)
-- An earlier one of the same id may have expired, or been thrown away, and still be listed.
redis.call('ZREM', done, member)
redis.call('ZREM', dead, member)
return 'new'
