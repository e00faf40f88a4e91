-- Take from a fixed window, aligned to the epoch.
-- KEYS: state
-- ARGV: limit, window in ms, cost
-- Answer: allowed, remaining, ms until it may be allowed, ms since the epoch of being whole

local limit, per, cost = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
-- needs: _clock
local start = now - now % per
local count = 0
local state = redis.call('GET', KEYS[1])
if state then
  local since, span, used = string.match(state, '^(%d+)|(%d+)|(%d+)$')
  if tonumber(since) == start and tonumber(span) == per then count = tonumber(used) end
end
local finish = start + per
local allowed = count + math.max(cost, 1) <= limit
if allowed and cost > 0 then
  count = count + cost
  redis.call('SET', KEYS[1], string.format('%.0f|%.0f|%.0f', start, per, count), 'PX', finish - now)
end
local retry = allowed and 0 or finish - now
return {allowed and 1 or 0, math.max(0, limit - count), string.format('%.0f', retry),
  string.format('%.0f', count > 0 and finish or now)}
