-- How the inbox stands. A script and no MULTI: that is refused when no memory is left, though it only reads.
-- KEYS: due, done, dead, bytes
local due, dead, bytes = KEYS[1], KEYS[3], KEYS[4]
return {
    redis.call('ZCARD', due),
    redis.call('GET', bytes) or '0',
    redis.call('ZCARD', dead),
    redis.call('ZRANGE', due, 0, 0, 'WITHSCORES'),
}
