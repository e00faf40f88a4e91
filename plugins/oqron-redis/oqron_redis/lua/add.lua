-- Insert records, and make those claimable that were inserted.
--
-- A call whose answer was lost is made again, perhaps when its jobs have been worked and
-- are gone: its mark says that it was done, and what became of each.
-- KEYS: as of write; then the eight of publish; then the mark of this call, and those of
--       calls that were answered
-- ARGV: as of write, for inserts alone that give no fields back; then as of publish, with
--       an entry for each insert, in order; then how many these are, the milliseconds
--       that the mark lasts, and how many marks are to be forgotten
-- Answer: as of write

-- needs: _clock
-- calls: write
-- calls: publish
local forgotten = tonumber(ARGV[#ARGV])
local entries = tonumber(ARGV[#ARGV - 2])
local place = #KEYS - forgotten
local mark = KEYS[place]

local done = redis.call('GET', mark)
if done then
  local cut = string.find(done, ':', 1, true)
  local answer = {string.sub(done, 1, cut - 1)}
  for i = 1, entries do
    answer[i + 1] = string.byte(done, cut + i) - 48
  end
  return answer
end

local answer = write(KEYS, ARGV)

local head = #ARGV - 3 * entries - 5
local words, n = {ARGV[head], ARGV[head + 1], ARGV[head + 2]}, 3
local flags = {}
for i = 1, entries do
  if answer[i + 1] == 1 then
    local at = head + 3 * i
    words[n + 1], words[n + 2], words[n + 3] = ARGV[at], ARGV[at + 1], ARGV[at + 2]
    n = n + 3
    flags[i] = '1'
  else
    flags[i] = '0'
  end
end
if n > 3 then
  local keys = {}
  for i = 1, 8 do keys[i] = KEYS[place - 9 + i] end
  publish(keys, words)
end
redis.call('SET', mark, answer[1] .. ':' .. table.concat(flags), 'PX', ARGV[#ARGV - 1])
for i = place + 1, #KEYS do redis.call('UNLINK', KEYS[i]) end
return answer
