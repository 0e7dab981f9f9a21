-- folds.lua: folding of events into the messages of open pairs.

-- Returns the records of folded events, which a call collects and write_folds writes.
local function new_folds(now, kept)
  return { now = now, kept = kept, dones = {}, versions = {}, taken = {}, answered = {} }
end

-- Counts an event in a message of an open pair, and keeps the pair. Returns its number in the message, above OF_FLAP if the key is flapping,
-- and the message's minute.
local function fold_into(folds, book, pair, messages, message, event_key, version, stored, is_flapping)
  message.folded, message.newest = message.folded + 1, math.max(message.newest, stored)
  message.last = math.floor(message.newest / VERSIONS) * 1000
  put_pair(book, pair, messages_text(messages), folds.now + folds.kept)
  local number, minute = math.min(message.folded + 1, OF_FLAP - 1) + (is_flapping and OF_FLAP or 0), math.floor(message.time / MINUTE)
  folds.dones[#folds.dones + 1] = event_key
  folds.taken[#folds.taken + 1] = event_key
  folds.taken[#folds.taken + 1] = folded_value(number, minute)
  if version ~= '' then
    folds.versions[#folds.versions + 1] = version
    folds.versions[#folds.versions + 1] = event_key
  end
  return number, minute
end

-- Writes the records of folded events, and removes expired records.
local function write_folds(folds, keys, lease, retention)
  if #folds.dones == 0 then
    return
  end
  local dones = {}
  for i, event_key in ipairs(folds.dones) do
    dones[2 * i - 1], dones[2 * i] = integer(folds.now + retention), event_key
  end
  check_rights(keys.done, retention)
  forget(keys, folds.now, retention)
  add_and_keep(keys.done, dones, retention)
  add_and_keep(keys.message, folds.versions, lease + retention)
  put_for(keys.taken, folds.taken, milliseconds(lease + retention))
end
