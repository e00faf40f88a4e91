-- Apply a batch of writes, and acknowledge the leases of those that were applied.
-- KEYS: as of write; then the seven of settle
-- ARGV: as of write, which gives no fields back; then id and token of the leases of the
--       first writes, and how many these are
-- Answer: as of write; then as of settle, with 0 for a write that was not applied. As of
--         write alone for an atomic batch that does not hold

-- needs: _clock
-- calls: write
-- calls: settle
local leases = tonumber(ARGV[#ARGV])
local answer = write(KEYS, ARGV)
if answer[1] == '-1' then
  return {answer}
end

local words, n, places = {'ack', '0', '', '', ''}, 5, {}
local head = #ARGV - 2 * leases - 1
for i = 1, leases do
  local reply = answer[i + 1]
  local kind = type(reply)
  -- A number or a record: see write.
  if (kind == 'number' and reply > 0) or kind == 'string' then
    words[n + 1], words[n + 2] = ARGV[head + 2 * i - 1], ARGV[head + 2 * i]
    n = n + 2
    places[#places + 1] = i
  end
end
local flags = {}
for i = 1, leases do flags[i] = '0' end
if #places > 0 then
  local keys = {}
  for i = 1, 7 do keys[i] = KEYS[#KEYS - 7 + i] end
  local held = settle(keys, words)
  for i = 1, #places do flags[places[i]] = string.sub(held, i, i) end
end
return {answer, table.concat(flags)}
