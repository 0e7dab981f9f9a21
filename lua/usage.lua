-- usage.lua: counts the slots in use. Writes nothing.
--
-- KEYS
--   1   calls    sorted set: nonce of a call that granted something -> its time
--   2…  buckets  see read_buckets
--
-- ARGV
--   lease (microseconds), buckets (see read_buckets)
--
-- Returns the slots taken of each limit, in the order of ARGV.
--
-- Errors: WRONGTYPE.

--@include lib/buckets algorithms

local now = deployment_time(KEYS[1])
local next_argument = reader(ARGV, 1)
local next_key = reader(KEYS, 1)
local buckets = read_buckets(next_argument, next_key, now, tonumber(ARGV[1]))
local reply = {}
for _, bucket in ipairs(buckets) do
  for _, limit in ipairs(bucket.limits) do
    reply[#reply + 1] = bucket.algorithm.used(read_once(bucket), limit)
  end
end
return reply
