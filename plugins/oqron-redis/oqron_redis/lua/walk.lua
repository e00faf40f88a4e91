-- Walk one index from a place on.
-- KEYS: index
-- ARGV: first and last member as ZRANGEBYLEX takes them, how many, direction (1, -1)
-- Answer: the members

if ARGV[4] == '-1' then
  return redis.call('ZREVRANGEBYLEX', KEYS[1], ARGV[2], ARGV[1], 'LIMIT', 0, ARGV[3])
end
return redis.call('ZRANGEBYLEX', KEYS[1], ARGV[1], ARGV[2], 'LIMIT', 0, ARGV[3])
