-- Writes of a batch that differ in their values alone, from behind `position` on: the lists
-- of names that the `verb` has, then the values that all of them share.

-- The lists, and how many columns the values have.
local lists, width = {}, verb == 'D' and 0 or verb == 'U' and 1 or 2
for l = 1, verb == 'U' and 5 or 1 do
  local list, length = {}, tonumber(ARGV[position + 1])
  for i = 1, length do list[i] = ARGV[position + i + 1] end
  position = position + length + 1
  lists[l] = list
  -- What is unset has no values.
  if l ~= 3 then width = width + length end
end

-- The values stand in columns. What all writes share comes once: how many columns that
-- are, and of each its place and its value. The others come in `values`, write by write.
local row, varying = {}, {}
local shared = tonumber(ARGV[position + 1])
position = position + 1
for i = 1, shared do
  row[tonumber(ARGV[position + 1])] = ARGV[position + 2]
  position = position + 2
end
for column = 1, width do
  if not row[column] then varying[#varying + 1] = column end
end

-- Take what differs in the next write.
local function next_row()
  for v = 1, #varying do row[varying[v]] = values[position + v] end
  position = position + #varying
end
