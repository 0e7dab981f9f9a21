-- batch.lua: functions that fastpath.lua and evaluate.lua share.

-- Redis stores a small sorted set as a list (zset-max-listpack-entries, by default 128) and searches it from one end to
-- the other end. If a call has MANY names to look for in a set of at most SMALL members, reading the whole set is cheaper.
local SMALL, MANY = 128, 16

-- Looks for `count` names of a list, behind the index `before`, in a sorted set. Returns name -> score for the members, or
-- name -> true where the score was not read. Sets marked[name] for each member too.
local function scores(key, names, before, count, marked)
  local found, marks = {}, marked or {}
  if count >= MANY and redis.call('ZCARD', key) <= SMALL then
    for _, name in ipairs(redis.call('ZRANGE', key, 0, -1)) do
      found[name], marks[name] = true, true
    end
    return found
  end
  for from = before + 1, before + count, PIECE do
    local upto = math.min(from + PIECE - 1, before + count)
    local piece = redis.call('ZMSCORE', key, unpack(names, from, upto))
    for i = from, upto do
      if piece[i - from + 1] then
        found[names[i]], marks[names[i]] = piece[i - from + 1], true
      end
    end
  end
  return found
end

-- Returns an event as the algorithms take it. The shadow names its slots after the stored message, since an older event may
-- have an equal identity.
local function event_of(batch, event_key, version, view)
  local name, message = log_name(event_key, version), message_name(event_key, version)
  local other = message
  if view.set.is_shadow then
    name, other = message, message .. '\n' .. batch.time
  end
  return { name = name, other = other, message = message, cost = view.cost, guarantee = view.guarantee }
end

-- Returns the message names (see message_name) of a batch.
local function stored_messages(batch)
  local values, messages = batch.values, {}
  for index = 1, batch.count do
    local version = batch.before_versions and values[batch.before_versions + index] or ''
    messages[index] = message_name(values[batch.before_event_keys + index], version)
  end
  return messages
end

-- Adds { time, message name, … } to the events that the shadow admitted, and removes expired ones.
local function write_shadow_taken(batch, timed)
  if #timed > 0 then
    batch.trim(batch.shadow_taken_key, integer(batch.now - batch.shadow_kept), #timed / 2)
    add_for(batch.shadow_taken_key, timed, milliseconds(batch.shadow_kept + TOLERANCE))
  end
end
