-- fastpath.lua: decides a batch as one, for decide.lua, if a set of limits gives all its events one answer: all are
-- admitted, or denied by the first log, which all paths share. The shadow is a set with its own answer.
--
-- The caller chooses the fast path only for events of cost 1 whose paths have logs alone, without guarantees and without limits
-- of 0 slots. The fast path gives up, and decide.lua evaluates event by event, if an event has a record or the answers may differ.
--
-- ARGV, one string for each set, each value followed by a blank
--   1 if all paths begin with the first log, otherwise 0
--   number of the first log's first limit, as decide.lua counts them
--   number of logs; for each: number of its bucket, number of limits; for each: count, window (microseconds)
--   number of asks; for each: path (see read_path)

-- Returns a log as a bucket for algorithms/log.lua. The size of the set, stale members included, mostly shows that there is room
-- for the batch. The slots in each window are counted only if it does not.
local function read_log(next_word, key, now, needed)
  local limits, least, longest = {}, math.huge, 0
  for l = 1, tonumber(next_word()) do
    local count, window = tonumber(next_word()), tonumber(next_word())
    limits[l] = { index = l, count = count, window = window, stored = 0, reserved = 0 }
    least, longest = math.min(least, count), math.max(longest, window)
  end
  local log = {
    key = key, limits = limits, guarantees = {}, longest = longest, now = now, latest = nil,
    room = least - redis.call('ZCARD', key), members = {}, taken = 0, events_of = nil,
  }
  if log.room < needed then
    log.latest = integer(now + TOLERANCE)
    algorithms.log.read(log)
  end
  return log
end

-- Reads a set, and asks the first log whether it denies. Returns nil if another log has no room.
local function read_set(batch, text)
  local next_word = words(text)
  local first_is_common, first_limit = next_word() == '1', tonumber(next_word())
  local set = { verdict = ADMITTED, limit = 0, time = batch.lease, logs = {}, paths = {}, longest = 0 }
  local by_number = {}
  for l = 1, tonumber(next_word()) do
    local number = tonumber(next_word())
    local log = read_log(next_word, batch.keys[batch.before_buckets + number], batch.now, batch.count)
    if log.room < 1 then
      if l > 1 or not first_is_common then
        return nil
      end
      local limit, time = algorithms.log.wait(log, 1, 0)
      return { verdict = DENIED, limit = first_limit + limit.index - 1, time = time, logs = {} }
    end
    by_number[number], set.logs[l], set.longest = log, log, math.max(set.longest, log.longest)
  end
  for a = 1, tonumber(next_word()) do
    set.paths[a] = read_path(next_word, by_number)
  end
  return set
end

-- Returns the path of an event in a set.
local function path_of(batch, set, index)
  local bytes = batch.ask_bytes
  return set.paths[256 * bytes[2 * index - 1] + bytes[2 * index]]
end

local function take(path, name, time)
  for p = 1, #path do
    local log = path[p]
    local members, taken = log.members, log.taken
    members[2 * taken + 1], members[2 * taken + 2] = time, name
    log.taken = taken + 1
  end
end

-- Takes the slots of all events, in memory, in the sets that admit them. Returns the members for leased, message and
-- shadow:taken; nil if an event key occurs twice or the shadow has admitted an event before.
local function take_all(batch, in_force, shadow)
  local values, before_event_keys, before_versions = batch.values, batch.before_event_keys, batch.before_versions
  local time, lease_end, seen, shadow_taken = batch.time, integer(batch.now + batch.lease), {}, {}
  local leases, messages, shadow_timed = {}, {}, {}
  local is_admitted, is_in_shadow = in_force.verdict == ADMITTED, shadow and shadow.verdict == ADMITTED
  if shadow then
    shadow_taken = scores(batch.shadow_taken_key, stored_messages(batch), 0, batch.count)
  end
  for index = 1, batch.count do
    local event_key, version = values[before_event_keys + index], before_versions and values[before_versions + index] or ''
    if seen[event_key] then
      return nil
    end
    seen[event_key] = true
    if is_admitted then
      take(path_of(batch, in_force, index), log_name(event_key, version), time)
      leases[2 * index - 1], leases[2 * index] = lease_end, event_key
      if version ~= '' then
        messages[#messages + 1] = version
        messages[#messages + 1] = event_key
      end
    end
    if shadow then
      local message = message_name(event_key, version)
      if shadow_taken[message] then
        return nil
      elseif is_in_shadow then
        take(path_of(batch, shadow, index), message, time)
        shadow_timed[2 * index - 1], shadow_timed[2 * index] = time, message
      end
    end
  end
  return leases, messages, shadow_timed
end

local function has_room(set)
  for _, log in ipairs(set.logs) do
    if log.taken > log.room then
      return false
    end
  end
  return true
end

-- Writes the new slots of a set's logs.
local function write_logs(batch, set, is_shadow)
  local view = { set = { is_shadow = is_shadow }, cost = 1 }
  local function events_of(log)
    local events = {}
    for index = 1, batch.count do
      for _, other in ipairs(path_of(batch, set, index)) do
        if other == log then
          local event_key = batch.values[batch.before_event_keys + index]
          local version = batch.before_versions and batch.values[batch.before_versions + index] or ''
          events[#events + 1] = event_of(batch, event_key, version, view)
        end
      end
    end
    return events
  end
  for _, log in ipairs(set.logs) do
    log.events_of = events_of
    algorithms.log.write(log)
  end
end

-- Returns the reply of decide.lua. If it gives up, it returns nil and has changed nothing.
local function evaluate_as_one(batch, text, shadow_text)
  local in_force = read_set(batch, text)
  local shadow = in_force and shadow_text ~= '' and read_set(batch, shadow_text)
  if not in_force or shadow == nil then
    return nil
  end

  local reply, known = { batch.now, batch.pauses, { in_force.verdict, in_force.limit, in_force.time } }, batch.known
  for index = 1, batch.count do
    if known[batch.values[batch.before_event_keys + index]] then
      return nil
    end
    reply[3 + index] = 1
  end
  if shadow then
    reply[3] = { in_force.verdict, in_force.limit, in_force.time, shadow.verdict, shadow.limit, shadow.time }
    for index = 1, batch.count do
      reply[3 + batch.count + index] = 2
    end
  elseif in_force.verdict == DENIED then
    return reply
  end
  local leases, messages, shadow_timed = take_all(batch, in_force, shadow)
  if not leases or not has_room(in_force) or shadow and not has_room(shadow) then
    return nil
  end

  for _, set in ipairs({ in_force, shadow or nil }) do
    for _, log in ipairs(set.logs) do
      algorithms.log.trim(log, batch.trim)
    end
  end
  if #leases > 0 then
    note_call(batch.calls_key, batch.nonce, batch.time, math.max(batch.retention, in_force.longest))
  end
  write_logs(batch, in_force, false)
  if shadow then
    write_logs(batch, shadow, true)
  end
  local records_kept = milliseconds(batch.lease + batch.retention)
  add_for(batch.leased_key, leases, records_kept)
  add_for(batch.message_key, messages, records_kept)
  write_shadow_taken(batch, shadow_timed)
  return reply
end
