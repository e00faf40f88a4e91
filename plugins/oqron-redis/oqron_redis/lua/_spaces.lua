-- The namespaces of a batch: how many stand at `position`, then these; their keys stand
-- from `place` on: expiry index, namespaces of the kind, and the indexes. Of each: the
-- length of what stands before the id in a record key; its name; how many fields its
-- indexes look at, and these; how many indexes, and of each the place of the field that
-- must be equal and that of the field of the time (0 for none).

local namespaces = {}
for n = 1, tonumber(ARGV[position]) do
  local fields, places, defs = {}, {}, {}
  local prefix, name = tonumber(ARGV[position + 1]), ARGV[position + 2]
  local length = tonumber(ARGV[position + 3])
  position = position + 3
  for i = 1, length do
    local field = ARGV[position + i]
    fields[i] = field
    places[field] = i
  end
  position = position + length + 1
  for d = 1, tonumber(ARGV[position]) do
    defs[d] = {KEYS[place + d + 1], tonumber(ARGV[position + 1]), tonumber(ARGV[position + 2])}
    position = position + 2
  end
  namespaces[n] = {
    prefix = prefix, name = name, expiry = KEYS[place], registry = KEYS[place + 1],
    defs = defs, fields = fields, places = places, expiries = {},
    count = 0, seen = {}, ids = {}, before = {}, after = {},
  }
  place = place + #defs + 2
end
