-- Count the members of each part of an index of "part NUL …".
-- KEYS: index, expiry index
-- Answer: how many records have expired; then each part and its count

-- needs: _clock
local answer = {redis.call('ZCOUNT', KEYS[2], '-inf', now)}
local head = redis.call('ZRANGEBYLEX', KEYS[1], '-', '+', 'LIMIT', 0, 1)[1]
while head do
  local part = string.match(head, '^[^%z]*')
  answer[#answer + 1] = part
  answer[#answer + 1] = redis.call('ZLEXCOUNT', KEYS[1], '[' .. part .. '\0', '(' .. part .. '\1')
  head = redis.call('ZRANGEBYLEX', KEYS[1], '[' .. part .. '\1', '+', 'LIMIT', 0, 1)[1]
end
return answer
