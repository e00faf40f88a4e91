-- Make ids claimable now, or when they are due.
-- KEYS: ready, delayed, leased, ids, counter, wake, paused, and the registry of
--       queues unless it lives in another slot
-- ARGV: channel, queue, ttl of the counter in ms, then id, priority, due of each
-- Answer: one letter per entry: a added, m moved, l leased

local ready, delayed, ids = KEYS[1], KEYS[2], KEYS[4]
-- needs: _clock

local names = {}
for a = 4, #ARGV, 3 do names[#names + 1] = ARGV[a] end
local known = redis.call('HMGET', ids, unpack(names))

local last = redis.call('GET', KEYS[5])
last = last and tonumber(last) or (clock[1] * 1000000 + clock[2])

local answer, states, scores, waits, not_ready, not_delayed = {}, {}, {}, {}, {}, {}
for i = 1, #names do
  local id, priority, due = names[i], ARGV[3 * i + 2], ARGV[3 * i + 3]
  local meta, seq, deliveries = known[i], nil, '0'
  if meta then
    local state, was
    state, seq, was, deliveries = string.match(meta, '^(.)(%d+)|(-?%d+)|(%d+)|')
    if state == 'l' then
      answer[i] = 'l'
    else
      answer[i] = 'm'
      if state == 'r' then
        not_ready[#not_ready + 1] = seq .. id
      else
        not_delayed[#not_delayed + 1] = id
      end
    end
  else
    last = last + 1
    seq = string.format('%016.0f', last)
    answer[i] = 'a'
  end
  if answer[i] ~= 'l' then
    local state = 'r'
    if due ~= '' and tonumber(due) > now then
      state = 'd'
      waits[#waits + 1] = due
      waits[#waits + 1] = id
    else
      scores[#scores + 1] = priority
      scores[#scores + 1] = seq .. id
    end
    states[#states + 1] = id
    states[#states + 1] = state .. seq .. '|' .. priority .. '|' .. deliveries .. '||'
  end
end

if #states > 0 then
  redis.call('HSET', ids, unpack(states))
  if #not_ready > 0 then redis.call('ZREM', ready, unpack(not_ready)) end
  if #not_delayed > 0 then redis.call('ZREM', delayed, unpack(not_delayed)) end
  if #scores > 0 then redis.call('ZADD', ready, unpack(scores)) end
  if #waits > 0 then redis.call('ZADD', delayed, unpack(waits)) end
  redis.call('SET', KEYS[5], string.format('%.0f', last), 'PX', ARGV[3])
  if KEYS[8] then redis.call('ZADD', KEYS[8], now, ARGV[2]) end
  -- A paused queue wakes nobody: the mark stays for whoever resumes it.
  if redis.call('EXISTS', KEYS[7]) == 0 and redis.call('DEL', KEYS[6]) == 1 then
    -- NUL: look again, what came is not due yet.
    redis.call('PUBLISH', ARGV[1], #scores > 0 and ARGV[2] or '\0' .. ARGV[2])
  end
end
return table.concat(answer)
