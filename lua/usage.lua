-- usage.lua: counts the slots in use, and finds when full limits have their next slots. Writes nothing.
--
-- KEYS
--   1   calls    sorted set: nonce of a call that granted something -> its time
--   2…  buckets  see read_buckets
--
-- ARGV
--   lease (microseconds), buckets (see read_buckets)
--
-- Returns for each limit, in the order of ARGV: slots taken; microseconds until the next slot for an event without a guarantee; 0 if it has
-- one now, or if another limit of the bucket opens later; -1 if it never gets one.
--
-- Errors: WRONGTYPE.

--@include lib/buckets algorithms

local now = deployment_time(KEYS[1])
local next_argument = reader(ARGV, 1)
local next_key = reader(KEYS, 1)
local buckets = read_buckets(next_argument, next_key, now, tonumber(ARGV[1]))
local reply = {}
for _, bucket in ipairs(buckets) do
  read_once(bucket)
  local exceeded = false
  for _, limit in ipairs(bucket.limits) do
    limit.used = bucket.algorithm.used(bucket, limit)
    limit.never = exceeds(bucket, limit, 1, 0)
    exceeded = exceeded or limit.never
  end
  local full, wait
  if not exceeded then
    full, wait = bucket.algorithm.wait(bucket, 1, 0)
  end
  for _, limit in ipairs(bucket.limits) do
    reply[#reply + 1] = limit.used
    reply[#reply + 1] = limit.never and -1 or limit == full and math.ceil(wait) or 0
  end
end
return reply
