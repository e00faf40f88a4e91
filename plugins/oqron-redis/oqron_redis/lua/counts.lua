-- Count what a queue holds now.
-- KEYS: ready, delayed, leased, paused
-- Answer: ready, delayed, leased, paused

-- needs: _clock
local due = redis.call('ZCOUNT', KEYS[2], '-inf', now)
local lapsed = redis.call('ZCOUNT', KEYS[3], '-inf', now)
return {
  redis.call('ZCARD', KEYS[1]) + due + lapsed,
  redis.call('ZCARD', KEYS[2]) - due,
  redis.call('ZCARD', KEYS[3]) - lapsed,
  redis.call('EXISTS', KEYS[4]),
}
