-- How records stand in an index: the member's parts, before the id, with NUL between.
-- What writes records and what erases them must find the same member.

local ABSENT, ODD = '\1', '\2'

local function equal_part(text)
  if not text then return ABSENT end
  local first = string.byte(text)
  if first == 91 or first == 123 or #text > 256 then return ODD end
  return text
end

-- Later instants sort first, then what has no instant; '!' marks what no index of
-- text can order.
local function time_part(text)
  if not text or text == 'null' then return '~' end
  local first = string.byte(text)
  if first == 91 or first == 123 then return '~' end
  if #text <= 15 and string.find(text, '^%d+$') then
    return string.format('%016.0f', 9007199254740991 - tonumber(text))
  end
  return '!'
end

-- Most records of a batch share the parts that stand before their ids.
local equals, times = {}, {}

local function head_of(heads, part_of, text)
  text = text or false
  local head = heads[text]
  if not head then
    head = part_of(text) .. META
    heads[text] = head
  end
  return head
end

-- Give the member of a record in an index, by the texts of the fields that indexes of its
-- namespace look at.
local function member_of(def, id, texts)
  if def[3] > 0 then id = head_of(times, time_part, texts[def[3]]) .. id end
  if def[2] > 0 then id = head_of(equals, equal_part, texts[def[2]]) .. id end
  return id
end
