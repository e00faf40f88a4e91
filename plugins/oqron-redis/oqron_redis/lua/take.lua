-- Lease up to n ready ids, and mark the record of each.
--
-- A call whose answer was lost is made again: what it took is kept under its names.
-- Which records these are is not known before, so this is no step of a cluster.
-- KEYS: the six of claim; what this call took; the keys of the namespace, as in _spaces;
--       then what calls took that were answered
-- ARGV: as of claim; the instant after which nobody waits; the milliseconds for which it
--       is known what was taken; whether the call is made again (0, 1); how many of others
--       are to be forgotten; what the JSON texts of the names begin with; what stands
--       before the id in the key of a record; how many columns are the instant, and
--       which; the namespace, as in _spaces; then a patch, as in _group. The last columns
--       of what it sets are the token and the name
-- Answer: now; then as of claim; then what became of each record, as of write, or nothing
--         where this was taken before. Now alone where the call came too late

-- needs: _clock
-- calls: claim
local now_text = string.format('%.0f', now)
local mark, forgotten = KEYS[7], tonumber(ARGV[9])

local done = redis.call('GET', mark)
if done then
  local parts = {}
  for part in string.gmatch(done .. '\0', '([^%z]*)%z') do parts[#parts + 1] = part end
  return {now_text, parts}
end
if now > tonumber(ARGV[6]) then
  return {now_text}
end

local taken = claim(KEYS, ARGV)
local last = (#taken - 1) / 4
local answer = {now_text}
if last > 0 then
  -- needs: _fields
  local wanted, returning = -1, {META}
  -- needs: _records
  local names, prefix = ARGV[10], ARGV[11]
  local instants = tonumber(ARGV[12])
  local position, place = 13 + instants, 8
  -- needs: _spaces

  local space, verb, values = namespaces[1], 'U', {}
  -- needs: _group
  for i = 1, instants do row[tonumber(ARGV[12 + i])] = now_text end
  local named = 1 + #lists[1] + #lists[2]
  varying = {named - 1, named}
  local records = {}
  for i = 1, last do
    records[i] = prefix .. taken[4 * i - 2]
    values[2 * i - 1] = taken[4 * i - 1]
    values[2 * i] = names .. string.format('%04x"', i - 1)
  end
  local first, atomic, failed = 1, false, nil
  position = 0
  -- needs: _patch
  -- needs: _indexed
end
-- Where nothing was taken there is nothing to be known, but what is made again may have an
-- elder that is still on its way.
if last > 0 or ARGV[1] == '0' or ARGV[8] == '1' then
  -- As in claim: a write that frees memory comes first.
  if last == 0 then redis.call('DEL', mark) end
  redis.call('SET', mark, table.concat(taken, '\0'), 'PX', ARGV[7])
end
for i = #KEYS - forgotten + 1, #KEYS do redis.call('UNLINK', KEYS[i]) end
return {now_text, taken, answer}
