-- The matching state in Redis, second half: what is remembered and answered. Appended to rules.lua.
-- memory.py ---------------------------------------------------------------------------------------------------------
local function drop_session(name, tombstones)
  call('ZREM', prefix .. 'lru', name)
  for _, id in ipairs(call('LRANGE', prefix .. 'e:' .. name, 0, -1)) do
    call('UNLINK', prefix .. 'h:' .. id)
    if not tombstones then call('UNLINK', prefix .. 'x:' .. id) end
  end
  call('UNLINK', prefix .. 'e:' .. name, prefix .. 's:' .. name)
end

local function expire(before)
  local old = call('ZRANGEBYSCORE', prefix .. 'lru', '-inf', string.format('(%.6f', before), 'LIMIT', 0, MAX_EXPIRED)
  for _, name in ipairs(old) do drop_session(name, true) end
  return #old
end

local function bound(own)
  local over = call('ZCARD', prefix .. 'lru') - limits.max_sessions
  if over <= 0 then return 0 end
  local evicted = 0
  for _, name in ipairs(call('ZRANGE', prefix .. 'lru', 0, over - 1)) do
    if name == own then break end
    drop_session(name, false)
    evicted = evicted + 1
  end
  return evicted
end

local function into_session(one)
  local key, list = prefix .. 's:' .. one.session, prefix .. 'e:' .. one.session
  local count = call('RPUSH', list, one.id)
  local old = call('HMGET', key, 't', 'z')
  local size = (tonumber(old[2]) or 0) + #heavy
  if size > limits.max_session_bytes then  -- what has expired by itself since is no longer held
    size = 0
    for _, id in ipairs(call('LRANGE', list, 0, -1)) do size = size + call('STRLEN', prefix .. 'h:' .. id) end
  end
  while count > limits.max_turns or size > limits.max_session_bytes do
    local oldest = call('LINDEX', list, 0)
    if oldest == one.id or oldest == one.previous then break end  -- a redelivery gives the binding again
    call('LPOP', list)
    size = size - call('STRLEN', prefix .. 'h:' .. oldest)
    call('UNLINK', prefix .. 'h:' .. oldest, prefix .. 'x:' .. oldest)
    count = count - 1
  end
  local fields = {'z', size}
  if #plan.slots > 0 then fields[3], fields[4] = 'h', '1' end
  if one.kind == 'main' and one.delivered and (not old[1] or one.now >= tonumber(old[1])) then
    local n = #fields
    fields[n + 1], fields[n + 2], fields[n + 3], fields[n + 4] = 'n', one.id, 't', string.format('%.6f', one.now)
  end
  call('HSET', key, unpack(fields))
  call('EXPIRE', key, keep)
  call('EXPIRE', list, keep)
  call('ZADD', prefix .. 'lru', 'GT', string.format('%.6f', math.max(plan.now, plan.done)), one.session)
end

-- choose.served_before, and the other short texts of the request.
local function short_texts(choice)
  local served, known, brought = {}, {}, {}
  local function add(mark)
    if mark ~= '' and not known[mark] and #served < 8 then served[#served + 1], known[mark] = mark, true end
  end
  if choice.found then
    if choice.at >= 0 then add(plan.slots[choice.at + 1].mark) end
    for _, mark in ipairs(choice.found.served or {}) do add(mark) end
  end
  for _, mark in ipairs(plan.brought) do
    if not known[mark] then brought[#brought + 1] = mark end
  end
  return served, brought
end

local function remembered(choice, said)
  local served, brought = short_texts(choice)
  local found = said.previous
  local session = plan.session
  if session == '' and found then session = found.session end
  if session == '' and said.rejects ~= '' then
    local other = get(said.rejects)
    session = other and other.session or ''
  elseif session == '' and said.label == 'retry' then
    for _, c in ipairs(under(plan.same)) do
      if c.id ~= plan.id and c.now <= plan.now then session = c.session break end
    end
  end
  return {id = plan.id, now = plan.now, done = plan.done, delivered = plan.delivered, outcome = plan.outcome,
    session = session ~= '' and session or 'auto:' .. plan.id, named = plan.session, kind = said.kind,
    same = plan.same, prompt = plan.prompt, calls = plan.calls, ids = plan.ids, served = served,
    brought = brought, heads = plan.own_heads, captured = plan.captured,
    previous = found and found.id or '', bound = said.turn and said.turn.id or '', answered = {}, light = light}
end

-- Leave the keys by which answers find this exchange. Gives the answers that already wait under them.
local function leave_keys()
  local waiting = {}
  local function collect(key)
    for _, line in ipairs(put(key) or {}) do waiting[#waiting + 1] = line end
  end
  if plan.same ~= '' then put(plan.same) end
  if not plan.delivered then return waiting end
  for _, pair in ipairs(plan.keys) do collect(pair[2]) end
  for _, k in ipairs(plan.own_cut) do put(k) end
  for _, k in ipairs(plan.own_lines) do put(k) end
  for _, k in ipairs(plan.own_spawns) do put(k) end
  if plan.own_response ~= '' then collect(plan.own_response) end
  return waiting
end

local function remember(choice, said)
  local one = remembered(choice, said)
  call('SET', prefix .. 'h:' .. plan.id, heavy, 'EX', keep)
  bodies[plan.id] = heavy
  if said.turn and said.kind == 'main' then
    said.turn.answered[#said.turn.answered + 1] = plan.id
    call('HSET', prefix .. 'x:' .. said.turn.id, 'n', table.concat(said.turn.answered, '\n'))
  end
  local waiting = leave_keys()
  if not choice.found and plan.kind == 'main' then
    if plan.previous ~= '' then wait_under(plan.previous, 'response') end
    for n = 1, plan.previous == '' and choice.open or 0 do
      local probe = plan.slots[1].probes[n]
      wait_under(probe[2], probe[1])
    end
  end
  into_session(one)
  return one, waiting
end

local function late_answers(one, waiting)
  local found = {}
  for _, line in ipairs(waiting) do
    local level, id = string.match(line, '^%?(%S+) (.*)$')
    local other = get(id)
    if other and other.bound == '' and other.kind == 'main' and id ~= plan.id
      and one.done <= other.now + limits.slack_seconds and one.now < other.now
      and other.now - one.done <= limits.ttl_seconds and one.same ~= other.same then
      other.bound, other.previous = plan.id, plan.id
      call('HSET', prefix .. 'x:' .. id, 'c', packed(other))
      one.answered[#one.answered + 1] = id
      found[#found + 1] = {id, level}
    end
  end
  return found
end

local function earlier(start)
  local found, left, at = {}, limits.earlier_bytes, start
  while at ~= '' and #found < limits.earlier_turns do
    local one = get(at)
    if not one then break end
    local whole = one.captured and body(at) or ''
    if #whole > left then whole = '' end
    left = left - #whole
    table.insert(found, 1, {at, one.light, whole})
    at = one.previous
  end
  return found
end

-- The stored verdict with everything that the records need, read anew.
local function reply(r)
  local turn, rejected = r.turn ~= '' and get(r.turn), r.rejects ~= '' and get(r.rejects)
  local before = turn or rejected or (#r.late > 0 and get(plan.id))
  local late = {}
  for _, pair in ipairs(r.late) do
    late[#late + 1] = {pair[1], pair[2], call('HGET', prefix .. 'x:' .. pair[1], 'a') or ''}
  end
  return {r.turn, r.at, r.turn_session, r.level, r.narrowed and 1 or 0, r.reason, r.kind, r.session,
    string.format('%.6f', r.gap), r.repeats, r.rejects, r.expired, r.evicted,
    turn and turn.light or '', turn and body(r.turn) or '', before and earlier(before.previous) or {}, late,
    rejected and rejected.light or '', rejected and body(r.rejects) or ''}
end

local function match()
  local known = call('HGET', prefix .. 'x:' .. plan.id, 'r')
  if known then return reply(cmsgpack.unpack(known)) end
  local expired = expire(plan.now - limits.ttl_seconds)
  if #plan.unless > 0 and by_lines({plan.unless}, 'bridge', -1).found then plan.kind, plan.reason = 'main', '' end
  local choice = choose()
  local said = classify(choice, delegated())
  local one, waiting = remember(choice, said)
  local late = said.kind == 'main' and late_answers(one, waiting) or {}
  local result = {turn = said.turn and said.turn.id or '', at = choice.at,
    turn_session = said.turn and said.turn.named or '', level = said.previous and choice.level or '',
    narrowed = choice.narrowed or false, reason = said.reason, kind = said.label, session = one.session,
    gap = said.previous and plan.now - said.previous.done or -1, repeats = said.repeats, rejects = said.rejects,
    expired = expired, evicted = bound(one.session), late = late}
  call('HSET', prefix .. 'x:' .. plan.id, 'c', packed(one), 'n', table.concat(one.answered, '\n'), 'l', light,
    'a', answer, 'r', cmsgpack.pack(result))
  call('EXPIRE', prefix .. 'x:' .. plan.id, tomb)
  cache[plan.id] = one
  return reply(result)
end

local replies = {}
for n = 2, #ARGV, 4 do
  begin(n)
  replies[#replies + 1] = match()
end
call('EXPIRE', prefix .. 'lru', tomb)
return replies
