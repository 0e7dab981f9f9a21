-- log.lua: the sliding log. At most `count` slots in any rolling window.
--
-- Promise: exact at every instant. The time of the next slot is exact. Burst at the edge: none. Memory: one member of a sorted
-- set for each slot taken, about 100 bytes.
--
-- State: sorted set: slot of an event -> time of admission. All log limits of a path share one log. The global log also has
-- guarantees: slots of each window that are reserved for a path. The events of such a path are in the guarantee's own log too.
-- The unused slots of a guarantee count as taken for all other events.

algorithms.log = {}

-- Returns whether `cost` slots fit if `used` are in use and `reserved` are unused slots of guarantees, `own` of them of the event's
-- guarantee.
local function fits(limit, cost, used, reserved, own)
  if cost <= own then
    return used + cost <= limit.count
  end
  return used + cost + reserved - own <= limit.count
end

function algorithms.log.read(bucket)
  bucket.taken_now, bucket.room = 0, math.huge
  for _, limit in ipairs(bucket.limits) do
    local from = '(' .. integer(bucket.now - limit.window)
    limit.stored = redis.call('ZCOUNT', bucket.key, from, bucket.latest)
    bucket.room = math.min(bucket.room, limit.count - limit.stored)
    if #bucket.guarantees > 0 then
      limit.taken, limit.times = {}, {}
      bucket.room = 0
    end
    for g, guarantee in ipairs(bucket.guarantees) do
      limit.taken[g] = redis.call('ZCOUNT', guarantee.key, from, bucket.latest)
      limit.reserved = limit.reserved + math.max(0, guarantee.slots - limit.taken[g])
    end
  end
end

local function unused(bucket, limit, g)
  local guarantee = bucket.guarantees[g]
  return guarantee and math.max(0, guarantee.slots - limit.taken[g]) or 0
end

-- Returns the time of the n-th slot in the window that was stored before this call.
local function taken_at(bucket, limit, n)
  if not limit.stale then
    limit.stale = redis.call('ZCOUNT', bucket.key, '-inf', integer(bucket.now - limit.window))
  end
  local rank = integer(limit.stale + n - 1)
  return tonumber(redis.call('ZRANGE', bucket.key, rank, rank, 'WITHSCORES')[2])
end

-- Returns the time of the last slot that must leave the window before `cost` slots fit. The slots of this call are newer
-- than the stored slots, but older than slots that a clock that ran ahead has left.
local function last_in_the_way(bucket, limit, cost)
  local taken_now = bucket.taken_now
  local leaving = cost + limit.stored + taken_now - limit.count
  local last = leaving <= limit.stored and taken_at(bucket, limit, leaving) or math.huge
  if last > bucket.now then
    last = leaving > taken_now and math.max(bucket.now, taken_at(bucket, limit, leaving - taken_now)) or bucket.now
  end
  return last
end

-- As last_in_the_way, for a log with guarantees. A slot of a guarantee that has used no more than its own slots frees none for
-- another path when it leaves. The free slots only increase as slots leave, so a binary search finds the slot.
local function last_in_the_way_of_others(bucket, limit, cost, g)
  local function left(key, taken_now, from)
    return redis.call('ZCOUNT', key, '(' .. integer(from), bucket.latest) + (from < bucket.now and taken_now or 0)
  end
  local function fits_after(from)
    local used, reserved, own = left(bucket.key, bucket.taken_now, from), 0, 0
    for i, guarantee in ipairs(bucket.guarantees) do
      local added = guarantee.added or 0
      local unused_then = math.max(0, guarantee.slots - left(guarantee.key, added, from))
      reserved = reserved + unused_then
      own = i == g and unused_then or own
    end
    return fits(limit, cost, used, reserved, own)
  end
  local low, high = 1, limit.stored + 1 -- the result is the low-th stored slot; stored + 1: none of them
  while low < high do
    local middle = math.floor((low + high) / 2)
    if fits_after(taken_at(bucket, limit, middle)) then
      high = middle
    else
      low = middle + 1
    end
  end
  local last = low <= limit.stored and taken_at(bucket, limit, low) or math.huge
  if last > bucket.now and fits_after(bucket.now) then
    last = bucket.now
  end
  return last
end

function algorithms.log.wait(bucket, cost, g)
  if cost <= bucket.room then
    return nil
  end
  for _, limit in ipairs(bucket.limits) do
    if not fits(limit, cost, limit.stored + bucket.taken_now, limit.reserved, unused(bucket, limit, g)) then
      if #bucket.guarantees == 0 then
        return limit, last_in_the_way(bucket, limit, cost) + limit.window - bucket.now
      end
      -- The asks of one guarantee and cost share an answer until an event takes slots.
      local asked = g .. ' ' .. cost
      if not limit.times[asked] then
        limit.times[asked] = last_in_the_way_of_others(bucket, limit, cost, g) + limit.window - bucket.now
      end
      return limit, limit.times[asked]
    end
  end
end

-- Collects { time, member, … } of an event's slots for a set, and the event.
local function collect(set, event, time)
  if not set.members then
    set.members, set.events = {}, {}
  end
  local members, n = set.members, #set.members
  members[n + 1], members[n + 2] = time, event.name
  for slot = 2, event.cost do
    members[n + 2 * slot - 1], members[n + 2 * slot] = time, slot_member(event.name, slot)
  end
  set.events[#set.events + 1] = event
end

function algorithms.log.take(bucket, event)
  collect(bucket, event, bucket.time)
  bucket.room, bucket.taken_now = bucket.room - event.cost, bucket.taken_now + event.cost
  if #bucket.guarantees == 0 then
    return
  end
  local g = event.guarantee
  local guarantee = bucket.guarantees[g]
  for _, limit in ipairs(bucket.limits) do
    limit.times = {}
    if guarantee then
      limit.reserved = limit.reserved - math.min(unused(bucket, limit, g), event.cost)
      limit.taken[g] = limit.taken[g] + event.cost
    end
  end
  if guarantee then
    guarantee.added = (guarantee.added or 0) + event.cost
    collect(guarantee, event, bucket.time)
  end
end

-- Writes the slots under the event's second name if the set has the first name for an older event or for an earlier event of this
-- call. A slot that exists under the second name moves: this very event left it there (see refund.lua).
local function write_under_other_name(set, events, now)
  local named = {}
  for _, event in ipairs(events) do
    for slot = 1, event.cost do
      local member = slot_member(event.name, slot)
      if named[member] or tonumber(redis.call('ZSCORE', set.key, member)) ~= now then
        redis.call('ZADD', set.key, integer(now), slot_member(event.other, slot))
      end
      named[member] = true
    end
  end
end

-- Writes the members of a set, and keeps the set that long (microseconds).
local function add(set, now, kept)
  if not set.members then
    return
  end
  local sum = 0
  local count = #set.members
  for from = 1, count, PIECE do
    sum = sum + redis.call('ZADD', set.key, 'NX', unpack(set.members, from, math.min(from + PIECE - 1, count)))
  end
  if sum < count / 2 then
    write_under_other_name(set, set.events or set.events_of(set), now)
  end
  redis.call('PEXPIRE', set.key, milliseconds(kept))
end

function algorithms.log.trim(bucket, trim)
  local upto = integer(bucket.now - bucket.longest)
  trim(bucket.key, upto, #(bucket.members or {}) / 2)
  for _, guarantee in ipairs(bucket.guarantees) do
    if guarantee.members then
      trim(guarantee.key, upto, #guarantee.members / 2)
    end
  end
end

function algorithms.log.write(bucket)
  add(bucket, bucket.now, bucket.longest + TOLERANCE)
  for _, guarantee in ipairs(bucket.guarantees) do
    add(guarantee, bucket.now, bucket.longest + TOLERANCE)
  end
end

function algorithms.log.give_back(bucket, event)
  local function remove(key)
    for slot = 1, event.cost do
      if redis.call('ZREM', key, slot_member(event.other, slot)) == 0 then
        redis.call('ZREM', key, slot_member(event.name, slot))
      end
    end
  end
  remove(bucket.key)
  local guarantee = bucket.guarantees[event.guarantee]
  if guarantee then
    remove(guarantee.key)
  end
end

-- Records an admission of a worker without Redis.
function algorithms.log.restore(bucket, event, at)
  if at <= bucket.now - bucket.longest then
    return
  end
  local function put(key)
    for slot = 1, event.cost do
      if redis.call('ZADD', key, 'NX', integer(at), slot_member(event.name, slot)) == 0 then
        redis.call('ZADD', key, integer(at), slot_member(event.other, slot))
      end
    end
    redis.call('PEXPIRE', key, milliseconds(bucket.longest + TOLERANCE))
  end
  put(bucket.key)
  local guarantee = bucket.guarantees[event.guarantee]
  if guarantee then
    put(guarantee.key)
  end
end

function algorithms.log.used(bucket, limit)
  return limit.stored + bucket.taken_now
end
