-- Insert records, and make those claimable that were inserted.
-- KEYS: as of write; then the eight of publish
-- ARGV: as of write, for inserts alone that give no fields back; then as of publish, with
--       an entry for each insert, in order; then how many these are
-- Answer: as of write

-- calls: write
-- calls: publish
local entries = tonumber(ARGV[#ARGV])
local head = #ARGV - 3 * entries - 3
local answer = write(KEYS, ARGV)

local words, n = {ARGV[head], ARGV[head + 1], ARGV[head + 2]}, 3
for i = 1, entries do
  if answer[i + 1] == 1 then
    local at = head + 3 * i
    words[n + 1], words[n + 2], words[n + 3] = ARGV[at], ARGV[at + 1], ARGV[at + 2]
    n = n + 3
  end
end
if n > 3 then
  local keys = {}
  for i = 1, 8 do keys[i] = KEYS[#KEYS - 8 + i] end
  publish(keys, words)
end
return answer
