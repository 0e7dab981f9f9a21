-- buckets.lua: reads the buckets of a call, and calls their algorithms.
--
-- A bucket is the state that an algorithm counts with: the log of a path, which all log limits of the path share or the
-- state of one other limit. Each file in algorithms/ adds a table with these functions to `algorithms`:
--   read(bucket)                reads the bucket's state
--   wait(bucket, cost, g)       returns nil if the cost fits, otherwise the full limit and the microseconds until the cost
--                               fits; g is the number of the guarantee that the event belongs to, otherwise 0
--   take(bucket, event)         takes the event's slots, in memory
--   trim(bucket, trim)          removes what has left every window, with a trimmer (see new_trimmer); optional
--   write(bucket)               writes what has changed
--   give_back(bucket, event)    returns the slots of an event that was not delivered
--   restore(bucket, event, at)  takes the slots of an event that was admitted without Redis at the time `at`
--   used(bucket, limit)         returns how many slots are taken now
-- and these flags:
--   times_admissions            give_back needs event.taken, the time of admission
--   follows_delivery            slots return when the delivery ends. The table then also has holds(bucket, event),
--                               renew(bucket, event) and, for slots that another event may have by now, extend(bucket, event),
--                               which writes at once

-- Reads buckets from ARGV:
--   number of buckets; for each: algorithm, number of limits; for each limit: count, window (microseconds), burst;
--   number of guarantees; for each: its slots
-- and their keys from KEYS: for each bucket its own key, then the key of each guarantee.
local function read_buckets(next_argument, next_key, now, lease)
  local buckets, limit_count = {}, 0
  local time, latest = integer(now), integer(now + TOLERANCE)
  for m = 1, tonumber(next_argument()) do
    local algorithm, key = algorithms[next_argument()], next_key()
    local limits, guarantees, longest = {}, {}, 0
    for l = 1, tonumber(next_argument()) do
      limit_count = limit_count + 1
      local count, window, burst = tonumber(next_argument()), tonumber(next_argument()), tonumber(next_argument())
      limits[l] = { number = limit_count, count = count, window = window, burst = burst, stored = 0, reserved = 0 }
      longest = math.max(longest, window)
    end
    for g = 1, tonumber(next_argument()) do
      local slots = tonumber(next_argument())
      guarantees[g] = { key = next_key(), slots = slots }
      guarantees.slots = (guarantees.slots or 0) + slots
    end
    buckets[m] = {
      algorithm = algorithm, key = key, limits = limits, limit = limits[1], guarantees = guarantees, longest = longest,
      now = now, time = time, latest = latest, lease = lease, was_read = false, changed = false,
    }
  end
  return buckets
end

-- Returns whether a cost is above what a limit ever allows an event of a guarantee: no event gets the slots
-- that are reserved for another path, unless the event fits into the slots of its own guarantee.
local function exceeds(bucket, limit, cost, guarantee)
  local others = 0
  if #bucket.guarantees > 0 then
    local own = bucket.guarantees[guarantee] and bucket.guarantees[guarantee].slots or 0
    others = cost > own and bucket.guarantees.slots - own or 0
  end
  return cost > limit.burst - others
end

local function name_of(bucket)
  return string.sub(redis.sha1hex(bucket.key), 1, 8)
end

-- Returns the names of the buckets of a path that need the time of admission to return slots; false if there are none.
local function timed_buckets(path)
  local names = {}
  for _, bucket in ipairs(path) do
    if bucket.algorithm.times_admissions then
      names[#names + 1] = name_of(bucket)
    end
  end
  return #names > 0 and table.concat(names, ' ')
end

local function read_once(bucket)
  if not bucket.was_read then
    bucket.algorithm.read(bucket)
    bucket.was_read = true
  end
  return bucket
end

local function read_all(buckets)
  for _, bucket in ipairs(buckets) do
    read_once(bucket)
  end
end

local function write_changed(buckets)
  for _, bucket in ipairs(buckets) do
    if bucket.changed then
      bucket.algorithm.write(bucket)
    end
  end
end

-- Returns the slots of an event that follow its delivery, in force and in the shadow.
local function give_back_following(event)
  for _, path in ipairs(event.following) do
    for _, bucket in ipairs(path) do
      bucket.algorithm.give_back(bucket, event)
    end
  end
end

-- Renews the slots of a delivery that goes on, and takes lost slots again. If they are not free, changes nothing and
-- returns the microseconds until they are. A limit below the event's cost is left out: it would block the delivery for ever.
local function resume(event, path)
  local held, lost = {}, {}
  for _, bucket in ipairs(path) do
    if bucket.algorithm.follows_delivery and event.cost <= bucket.limit.count then
      if bucket.algorithm.holds(read_once(bucket), event) then
        held[#held + 1] = bucket
      else
        local limit, time = bucket.algorithm.wait(bucket, event.cost, 0)
        if limit then
          return time
        end
        lost[#lost + 1] = bucket
      end
    end
  end
  for _, bucket in ipairs(held) do
    bucket.algorithm.renew(bucket, event)
    bucket.changed = true
  end
  for _, bucket in ipairs(lost) do
    bucket.algorithm.take(bucket, event)
    bucket.changed = true
  end
end
