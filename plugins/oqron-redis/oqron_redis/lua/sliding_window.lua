-- Take from a sliding window, judged by two adjoining fixed windows.
-- KEYS: state
-- ARGV: limit, window in ms, cost
-- Answer: allowed, remaining, ms until it may be allowed, ms since the epoch of being whole

local limit, per, cost = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
-- needs: _clock
local start = now - now % per
local previous, current = 0, 0
local state = redis.call('GET', KEYS[1])
if state then
  local since, span, before, here = string.match(state, '^(%d+)|(%d+)|(%d+)|(%d+)$')
  if tonumber(span) == per then
    if tonumber(since) == start then
      previous, current = tonumber(before), tonumber(here)
    elseif tonumber(since) == start - per then
      previous = tonumber(here)
    end
  end
end
local elapsed = now - start
-- All in units of 1/per, so that nothing is rounded.
local used = previous * (per - elapsed) + current * per
local wanted = math.max(cost, 1)
local allowed = used + wanted * per <= limit * per
local retry = 0
if allowed then
  if cost > 0 then
    current = current + cost
    used = used + cost * per
    redis.call('SET', KEYS[1],
      string.format('%.0f|%.0f|%.0f|%.0f', start, per, previous, current), 'PX', start + 2 * per - now)
  end
else
  local room = limit - current - wanted
  if room >= 0 then
    -- Enough of the window before has to slide out.
    retry = math.ceil(per - room * per / previous) - elapsed
  else
    -- This window has to become the one before, and slide out in part.
    local later = limit - wanted
    retry = per - elapsed + math.max(0, math.ceil(per - later * per / current))
  end
  retry = math.max(1, retry)
end
local whole = now
if current > 0 then whole = start + 2 * per elseif previous > 0 then whole = start + per end
return {allowed and 1 or 0, math.max(0, math.floor((limit * per - used) / per)),
  string.format('%.0f', retry), string.format('%.0f', whole)}
