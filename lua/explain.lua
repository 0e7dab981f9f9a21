-- explain.lua: returns the records of an event, and what the limits would answer to another event of its path. Writes nothing.
--
-- KEYS
--   1   calls    sorted set: nonce of a call that granted something -> its time
--   2   leased   sorted set: event key -> end of the lease
--   3   done     sorted set: event key of a delivered event -> when its record expires
--   4   message  sorted set: event key -> version of the stored message
--   5   taken    hash: event key of a folded event -> its number and its message's minute (see lib/folded.lua)
--   6…  books of pairs, see read_books
--   …   buckets  see read_buckets
--
-- ARGV
--   lease, retention (both microseconds), event key, pair, otherwise ''
--   books (see read_books): that of the pair, if there is one
--   buckets (see read_buckets)
--   cost, number of the guarantee of the event's path, otherwise 0, and path (see read_path)
--
-- Returns
--   time, end of the lease, end of the delivery's record, version of the message; each but the time is 0 if nothing is recorded
--   of a folded event its number in its message, see fold_into, and minutes until its message was posted, since 1970; otherwise 0 and 0
--   state of the pair, and until when: 1 it is open, 2 its message is being delivered, 3 its firing event waits for a slot; otherwise 0
--   for each limit, in the order of ARGV: slots taken, microseconds until the cost fits; -1 if the cost exceeds the limit;
--   0 if the cost fits now, if another limit of the bucket is full or if the cost exceeds another limit
--
-- Errors: WRONGTYPE.

--@include lib/buckets algorithms lib/records lib/pairs lib/folded

local leased_key, done_key, message_key, taken_key = KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local lease, retention, event_key = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3]
local now = deployment_time(KEYS[1])

local pair = ARGV[4]
local next_argument, next_key = reader(ARGV, 4), reader(KEYS, 5)
local books = read_books(next_argument, next_key, now, 0)
local buckets = read_buckets(next_argument, next_key, now, lease)
local cost, guarantee = tonumber(next_argument()), tonumber(next_argument())
local path = read_path(next_argument, buckets)

-- Returns a recorded time after the given time, otherwise 0.
local function recorded(key, after)
  local time = tonumber(redis.call('ZSCORE', key, event_key) or 0)
  return time > after and time or 0
end

-- Returns the state of the pair, and until when.
local function pair_state()
  if pair == '' then
    return 0, 0
  end
  local entry = read_pair(books[1], pair)
  if pair_text(entry, OPEN) then
    return 1, entry.expires
  end
  local lease_end, comes_back = 0, 0
  for under_way, one in pairs(read_deliveries(books[1], pair)) do
    lease_end = math.max(lease_end, tonumber(redis.call('ZSCORE', leased_key, under_way) or 0))
    comes_back = math.max(comes_back, one.comes_back)
  end
  if lease_end > now - retention then
    return 2, lease_end
  end
  local waits = comes_back + LATE_RETURN > now
  return waits and 3 or 0, waits and comes_back or 0
end

local exceeded = {} -- number of a limit that the cost exceeds -> true
for _, bucket in ipairs(path) do
  for _, limit in ipairs(bucket.limits) do
    exceeded[limit.number] = exceeds(bucket, limit, cost, guarantee) or nil
  end
end

local number, minute = folded_as(taken_key, event_key)
local reply = { now, recorded(leased_key, now - retention), recorded(done_key, now), recorded(message_key, 0), number or 0, minute or 0, pair_state() }
for _, bucket in ipairs(path) do
  read_once(bucket)
  local full, wait
  if not next(exceeded) then
    full, wait = bucket.algorithm.wait(bucket, cost, guarantee)
  end
  for _, limit in ipairs(bucket.limits) do
    reply[#reply + 1] = bucket.algorithm.used(bucket, limit)
    reply[#reply + 1] = exceeded[limit.number] and -1 or limit == full and math.ceil(wait) or 0
  end
end
return reply
