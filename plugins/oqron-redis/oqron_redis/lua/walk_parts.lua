-- Walk an index of "part NUL id" by id, over all parts at once.
-- KEYS: index
-- ARGV: the id to go on from, or '' for the end; how many; direction (1, -1)
-- Answer: from each part its first members, unsorted

local answer = {}
local from, limit = ARGV[1], ARGV[2]
local head = redis.call('ZRANGEBYLEX', KEYS[1], '-', '+', 'LIMIT', 0, 1)[1]
while head do
  local part = string.match(head, '^[^%z]*%z')
  -- Every other part sorts before or behind "part \1": NUL is the least byte.
  local behind = '(' .. string.sub(part, 1, -2) .. '\1'
  local members
  if ARGV[3] == '-1' then
    local upper = from == '' and behind or '(' .. part .. from
    members = redis.call('ZREVRANGEBYLEX', KEYS[1], upper, '[' .. part, 'LIMIT', 0, limit)
  else
    members = redis.call('ZRANGEBYLEX', KEYS[1], '(' .. part .. from, behind, 'LIMIT', 0, limit)
  end
  for i = 1, #members do answer[#answer + 1] = members[i] end
  head = redis.call('ZRANGEBYLEX', KEYS[1], '[' .. string.sub(part, 1, -2) .. '\1', '+',
    'LIMIT', 0, 1)[1]
end
return answer
