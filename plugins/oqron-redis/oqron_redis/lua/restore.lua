-- Put leases back as they were.
-- KEYS: leased, ids, counter, wake, and the registry of queues unless it lives
--       in another slot
-- ARGV: channel, queue, ttl of the counter in ms, then id, token, expiry,
--       deliveries, priority, owner of each
-- Answer: one digit per lease: 1 put back, 0 left alone

-- needs: _clock
local last = redis.call('GET', KEYS[3])
last = last and tonumber(last) or (clock[1] * 1000000 + clock[2])
for a = 4, #ARGV, 6 do last = math.max(last, tonumber(ARGV[a + 1])) end

local answer = {}
for a = 4, #ARGV, 6 do
  local id, token, expires, deliveries, priority, owner = unpack(ARGV, a, a + 5)
  if redis.call('HEXISTS', KEYS[2], id) == 1 then
    answer[#answer + 1] = '0'
  else
    last = last + 1
    redis.call('HSET', KEYS[2], id, 'l' .. string.format('%016.0f', last) .. '|' .. priority
      .. '|' .. deliveries .. '|' .. token .. '|' .. owner)
    redis.call('ZADD', KEYS[1], expires, id)
    answer[#answer + 1] = '1'
  end
end
redis.call('SET', KEYS[3], string.format('%.0f', last), 'PX', ARGV[3])
if KEYS[5] then redis.call('ZADD', KEYS[5], now, ARGV[2]) end
if redis.call('DEL', KEYS[4]) == 1 then
  redis.call('PUBLISH', ARGV[1], '\0' .. ARGV[2])
end
return table.concat(answer)
