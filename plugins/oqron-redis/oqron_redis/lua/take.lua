-- Lease up to n ready ids, and mark the record of each.
--
-- A call whose answer was lost is made again: what it took is kept under its names.
-- Which records these are is not known before, so this is no step of a cluster.
-- KEYS: the seven of claim; what this call took; nothing (a key that never is); of the
--       namespace as of write; then what calls took that were answered
-- ARGV: as of claim; the instant after which nobody waits; the milliseconds for which it
--       is known what was taken; whether the call is made again (0, 1); how many of others
--       are to be forgotten; what the JSON texts of the names begin with; what stands
--       before the id in the key of a record; how many columns are the instant, and
--       which; how many words the namespace has, and they, as of write; how many the
--       lists of names have, and they; then what all marks share. The last columns of
--       what is set are the token and the name
-- Answer: now; then as of claim; then as of write, or nothing where this was taken before.
--         Now alone where the call came too late

-- calls: claim
-- calls: write
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local now_text = string.format('%.0f', now)
local forgotten = tonumber(ARGV[9])
local place = KEYS[8]

local done = redis.call('GET', place)
if done then
  local parts = {}
  for part in string.gmatch(done .. '\0', '([^%z]*)%z') do parts[#parts + 1] = part end
  return {now_text, parts}
end
if now > tonumber(ARGV[6]) then
  return {now_text}
end

local taken = claim(KEYS, ARGV)
local count = (#taken - 1) / 4
local answer = {now_text, taken, {}}
if count > 0 then
  local prefix, names = ARGV[11], ARGV[10]
  local keys = {}
  for i = 1, count do keys[i] = prefix .. taken[4 * i - 2] end
  for i = 9, #KEYS - forgotten do keys[count + i - 8] = KEYS[i] end

  local many = string.format('%.0f', count)
  local words, n = {'0', '-1', '0', many, '1'}, 5
  local position = 12
  local instants = {}
  for i = 1, tonumber(ARGV[position]) do instants[i] = ARGV[position + i] end
  position = position + #instants + 1
  for _, verb in ipairs({false, 'U'}) do
    if verb then
      words[n + 1], words[n + 2], words[n + 3] = verb, '1', many
      n = n + 3
    end
    local length = tonumber(ARGV[position])
    for i = 1, length do words[n + i] = ARGV[position + i] end
    n = n + length
    position = position + length + 1
  end
  n = n + 1
  words[n] = tonumber(ARGV[position]) + #instants
  for i = position + 1, #ARGV do
    n = n + 1
    words[n] = ARGV[i]
  end
  for i = 1, #instants do
    words[n + 1], words[n + 2] = instants[i], now_text
    n = n + 2
  end
  for i = 1, count do
    words[n + 1], words[n + 2] = taken[4 * i - 1], names .. string.format('%04x"', i - 1)
    n = n + 2
  end
  answer[3] = write(keys, words)
end
-- Where nothing was taken there is nothing to be known, but what is made again may have an
-- elder that is still on its way.
if count > 0 or ARGV[1] == '0' or ARGV[8] == '1' then
  redis.call('SET', place, table.concat(taken, '\0'), 'PX', ARGV[7])
end
for i = #KEYS - forgotten + 1, #KEYS do redis.call('UNLINK', KEYS[i]) end
return answer
