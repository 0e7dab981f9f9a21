-- log.lua: the sliding log. At most `count` slots in any rolling window.
--
-- Promise: exact at every instant; the time of the next slot is exact. Burst at the edge: none. Memory: one member of a
-- sorted set for each slot taken, about 100 bytes.
--
-- All log limits of a place share one log: a sorted set of slot -> time of admission. The global log also knows
-- guarantees: slots of each window that belong to a path. Their events stand in a log of their own too, and what a
-- guarantee has left is as good as taken for everybody else.

algorithms.log = {}

-- Whether `cost` slots fit, where `used` are taken, `reserved` belong to guarantees that have not used them, and `own` of
-- those belong to the event's own.
local function fits(limit, cost, used, reserved, own)
  if cost <= own then
    return used + cost <= limit.count
  end
  return used + cost + reserved - own <= limit.count
end

function algorithms.log.read(meter)
  meter.taken_now, meter.room = 0, math.huge
  for _, limit in ipairs(meter.limits) do
    local from = '(' .. integer(meter.now - limit.window)
    limit.stored = redis.call('ZCOUNT', meter.key, from, meter.latest)
    meter.room = math.min(meter.room, limit.count - limit.stored)
    if #meter.guarantees > 0 then
      limit.taken, limit.times = {}, {}
      meter.room = 0
    end
    for g, guarantee in ipairs(meter.guarantees) do
      limit.taken[g] = redis.call('ZCOUNT', guarantee.key, from, meter.latest)
      limit.reserved = limit.reserved + math.max(0, guarantee.slots - limit.taken[g])
    end
  end
end

local function unused(meter, limit, g)
  local guarantee = meter.guarantees[g]
  return guarantee and math.max(0, guarantee.slots - limit.taken[g]) or 0
end

-- When the n-th of the entries that are in the window, and were so before this call, was taken.
local function taken_at(meter, limit, n)
  if not limit.stale then
    limit.stale = redis.call('ZCOUNT', meter.key, '-inf', integer(meter.now - limit.window))
  end
  local rank = integer(limit.stale + n - 1)
  return tonumber(redis.call('ZRANGE', meter.key, rank, rank, 'WITHSCORES')[2])
end

-- When the last of the entries was taken that have to leave the window before `cost` slots are free: as many of the oldest
-- as are in the way. Those of this call come behind the older ones, but before any that a clock that ran ahead has left.
local function last_in_the_way(meter, limit, cost)
  local taken_now = meter.taken_now
  local leaving = cost + limit.stored + taken_now - limit.count
  local last = leaving <= limit.stored and taken_at(meter, limit, leaving) or math.huge
  if last > meter.now then
    last = leaving > taken_now and math.max(meter.now, taken_at(meter, limit, leaving - taken_now)) or meter.now
  end
  return last
end

-- Likewise where there are guarantees: an entry of one that has used no more than its slots frees none for others. What
-- is free only grows as entries leave, so the entry is searched by halves.
local function last_in_the_way_of_others(meter, limit, cost, g)
  local function left(key, taken_now, from)
    return redis.call('ZCOUNT', key, '(' .. integer(from), meter.latest) + (from < meter.now and taken_now or 0)
  end
  local function fits_after(from)
    local used, reserved, own = left(meter.key, meter.taken_now, from), 0, 0
    for i, guarantee in ipairs(meter.guarantees) do
      local added = guarantee.added or 0
      local unused_then = math.max(0, guarantee.slots - left(guarantee.key, added, from))
      reserved = reserved + unused_then
      own = i == g and unused_then or own
    end
    return fits(limit, cost, used, reserved, own)
  end
  local low, high = 1, limit.stored + 1 -- the answer is the low-th stored entry, or none of them
  while low < high do
    local middle = math.floor((low + high) / 2)
    if fits_after(taken_at(meter, limit, middle)) then
      high = middle
    else
      low = middle + 1
    end
  end
  local last = low <= limit.stored and taken_at(meter, limit, low) or math.huge
  if last > meter.now and fits_after(meter.now) then
    last = meter.now
  end
  return last
end

function algorithms.log.wait(meter, cost, g)
  if cost <= meter.room then
    return nil
  end
  for _, limit in ipairs(meter.limits) do
    if not fits(limit, cost, limit.stored + meter.taken_now, limit.reserved, unused(meter, limit, g)) then
      if #meter.guarantees == 0 then
        return limit, last_in_the_way(meter, limit, cost) + limit.window - meter.now
      end
      -- The asks of one guarantee share an answer as long as nothing is taken.
      local asked = g .. ' ' .. cost
      if not limit.times[asked] then
        limit.times[asked] = last_in_the_way_of_others(meter, limit, cost, g) + limit.window - meter.now
      end
      return limit, limit.times[asked]
    end
  end
end

-- Collects { time, member, … } for a set, and the events they stand for.
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

function algorithms.log.take(meter, event)
  collect(meter, event, meter.time)
  meter.room, meter.taken_now = meter.room - event.cost, meter.taken_now + event.cost
  if #meter.guarantees == 0 then
    return
  end
  local g = event.guarantee
  local guarantee = meter.guarantees[g]
  for _, limit in ipairs(meter.limits) do
    limit.times = {}
    if guarantee then
      limit.reserved = limit.reserved - math.min(unused(meter, limit, g), event.cost)
      limit.taken[g] = limit.taken[g] + event.cost
    end
  end
  if guarantee then
    guarantee.added = (guarantee.added or 0) + event.cost
    collect(guarantee, event, meter.time)
  end
end

-- Gives another name to the slots whose name the set has for an older event, or for one before them in this call. A slot that
-- has the other name already was left behind by this very event (see refund.lua), and moves.
local function rename_taken(set, events, now)
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
    rename_taken(set, set.events or set.events_of(set), now)
  end
  redis.call('PEXPIRE', set.key, milliseconds(kept))
end

function algorithms.log.trim(meter, trim)
  local upto = integer(meter.now - meter.longest)
  trim(meter.key, upto, #(meter.members or {}) / 2)
  for _, guarantee in ipairs(meter.guarantees) do
    if guarantee.members then
      trim(guarantee.key, upto, #guarantee.members / 2)
    end
  end
end

function algorithms.log.write(meter)
  add(meter, meter.now, meter.longest + TOLERANCE)
  for _, guarantee in ipairs(meter.guarantees) do
    add(guarantee, meter.now, meter.longest + TOLERANCE)
  end
end

function algorithms.log.give_back(meter, event)
  local function remove(key)
    for slot = 1, event.cost do
      if redis.call('ZREM', key, slot_member(event.other, slot)) == 0 then
        redis.call('ZREM', key, slot_member(event.name, slot))
      end
    end
  end
  remove(meter.key)
  local guarantee = meter.guarantees[event.guarantee]
  if guarantee then
    remove(guarantee.key)
  end
end

-- Records an admission that was made elsewhere at a time.
function algorithms.log.restore(meter, event, at)
  if at <= meter.now - meter.longest then
    return
  end
  local function put(key)
    for slot = 1, event.cost do
      if redis.call('ZADD', key, 'NX', integer(at), slot_member(event.name, slot)) == 0 then
        redis.call('ZADD', key, integer(at), slot_member(event.other, slot))
      end
    end
    redis.call('PEXPIRE', key, milliseconds(meter.longest + TOLERANCE))
  end
  put(meter.key)
  local guarantee = meter.guarantees[event.guarantee]
  if guarantee then
    put(guarantee.key)
  end
end

function algorithms.log.used(meter, limit)
  return limit.stored + meter.taken_now
end
