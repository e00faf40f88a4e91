-- Insert records of one form, and make them claimable at once: what add does, where nothing
-- of it is there yet. Most calls are of this kind, and what add reads of its arguments to
-- serve every other costs as much again as the commands.
-- KEYS: ready, ids, counter, wake, paused, the registry of queues; namespaces of the kind;
--       the mark of this call; the indexes of the namespace; the records; then the marks of
--       calls that were answered
-- ARGV: channel, queue, ttl of the counter in ms; the namespace; the milliseconds that the
--       mark lasts; how many records; how many indexes, and of each what stands before the
--       id; how many fields of the hash are the same for all, with names and texts; how many
--       are not, with names; then of each record its id, its priority, its body, and the
--       texts of those
-- Answer: now, then 1 for each; nothing where something is there, and nothing was done

-- needs: _clock
local call = redis.call
local ids, mark = KEYS[2], KEYS[8]
local count, indexes = tonumber(ARGV[6]), tonumber(ARGV[7])
local first = 8 + indexes
if call('EXISTS', mark, unpack(KEYS, first + 1, first + count)) > 0 then
  return false
end

-- What HSET is given; the body and the texts that differ take their places.
local now_text = string.format('%.0f', now)
local same = 2 * tonumber(ARGV[first])
local differ = tonumber(ARGV[first + same + 1])
local fields = {'\0', now_text, '\0b', '', unpack(ARGV, first + 1, first + same)}
for i = 1, differ do fields[same + 3 + 2 * i] = ARGV[first + same + 1 + i] end

local width = 3 + differ
local base = first + same + 1 + differ
local names = {}
for i = 1, count do names[i] = ARGV[base + (i - 1) * width + 1] end
local known = call('HMGET', ids, unpack(names))
for i = 1, count do
  if known[i] then return false end
end

local last = call('GET', KEYS[3])
last = last and tonumber(last) or (clock[1] * 1000000 + clock[2])
local states, scores, flags, answer = {}, {}, {}, {now_text}
for i = 1, count do
  local row = base + (i - 1) * width
  local id, priority = names[i], ARGV[row + 2]
  fields[4] = ARGV[row + 3]
  for d = 1, differ do fields[same + 4 + 2 * d] = ARGV[row + 3 + d] end
  call('HSET', KEYS[first + i], unpack(fields))
  local seq = string.format('%016.0f', last + i)
  states[2 * i - 1], states[2 * i] = id, 'r' .. seq .. '|' .. priority .. '|0||'
  scores[2 * i - 1], scores[2 * i] = priority, seq .. id
  flags[i], answer[i + 1] = '1', 1
end
for x = 1, indexes do
  local head, members = ARGV[7 + x], {}
  for i = 1, count do members[2 * i - 1], members[2 * i] = 0, head .. names[i] end
  call('ZADD', KEYS[8 + x], unpack(members))
end
call('ZADD', KEYS[7], 0, ARGV[4])

call('HSET', ids, unpack(states))
call('ZADD', KEYS[1], unpack(scores))
call('SET', KEYS[3], string.format('%.0f', last + count), 'PX', ARGV[3])
call('ZADD', KEYS[6], now, ARGV[2])
-- A paused queue wakes nobody: the mark stays for whoever resumes it.
if call('EXISTS', KEYS[5]) == 0 and call('DEL', KEYS[4]) == 1 then
  call('PUBLISH', ARGV[1], ARGV[2])
end
call('SET', mark, now_text .. ':' .. table.concat(flags), 'PX', ARGV[5])
if KEYS[first + count + 1] then call('UNLINK', unpack(KEYS, first + count + 1)) end
return answer
