-- Take from a bucket into which tokens flow.
-- KEYS: state
-- ARGV: tokens per period, period in ms, capacity, cost
-- Answer: allowed, remaining, ms until it may be allowed, ms since the epoch of being whole

local flow, per = tonumber(ARGV[1]), tonumber(ARGV[2])
local capacity, cost = tonumber(ARGV[3]), tonumber(ARGV[4])
-- needs: _clock
local tokens = capacity
local state = redis.call('GET', KEYS[1])
if state then
  local held, since = string.match(state, '^([^|]+)|(%d+)$')
  tokens = tonumber(held) + math.max(0, now - tonumber(since)) * flow / per
  if tokens > capacity then tokens = capacity end
end
local wanted = math.max(cost, 1)
-- A rounding error must not refuse what is there.
local allowed = tokens + 1e-6 >= wanted
local retry = 0
if allowed then
  if cost > 0 then
    tokens = math.max(0, tokens - cost)
    redis.call('SET', KEYS[1], string.format('%.17g|%.0f', tokens, now),
      'PX', math.max(1, math.ceil((capacity - tokens) * per / flow)))
  end
else
  retry = math.max(1, math.ceil((wanted - tokens) * per / flow - 1e-6))
end
return {allowed and 1 or 0, math.floor(tokens + 1e-6), string.format('%.0f', retry),
  string.format('%.0f', now + math.ceil((capacity - tokens) * per / flow))}
