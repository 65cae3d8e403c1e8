-------------------------------- MODULE Raft --------------------------------
(***************************************************************************)
(* Elections and replication of the log (Raft, sections 5 and 9.6 of the   *)
(* dissertation), as Kudu runs them: a pre-vote precedes an election; a    *)
(* leader may commit entries that its own disk does not hold yet; a        *)
(* follower whose log differs resumes from its commit index.               *)
(***************************************************************************)
EXTENDS Replicas

-----------------------------------------------------------------------------
(* Elections.                                                               *)

\* A request for pre-votes, which leaves term and vote alone.  After a second request in the same term, late replies to
\* the first still count: a pre-vote commits its voter to nothing, so it can not be outdated.
\* Code: Raft::start_pre_vote, election.rs.
StartPreElection(s) ==
    LET t == Term(s) + 1 IN
    /\ Runs(s) /\ role[s] # "L" /\ t <= MaxTerm
    /\ On("candidate") => s \in Voters(Config(log[s]))
    /\ pre' = [pre EXCEPT ![t][s] =
           [last |-> Last(log[s]), yes |-> IF @ = NotAsked THEN {s} ELSE @.yes]]
    /\ UNCHANGED <<replica, tablet, cand, vote, sent, told, ack, history>>

\* A replica that does not know the end of its log must not vote.
Sighted(s) == On("blindvote") => ~IsBlind(s)

\* Grants a pre-vote, which commits the voter to nothing.
\* Code: Raft::decide, election.rs; decide_vote, vote.rs.
GrantPreVote(s, t, i) ==
    /\ pre[t][i] # NotAsked /\ s # i /\ Answers(s) /\ Sighted(s)
    /\ t >= Term(s)
    /\ t = Term(s) => Voted(s) \in {Nil, i}
    /\ Geq(pre[t][i].last, Known(s))
    /\ pre' = [pre EXCEPT ![t][i].yes = @ \union {s}]
    /\ IF On("prevoteterm") THEN UNCHANGED meta
       ELSE meta' = IF t > Term(s) THEN Metadata(s, <<t, Nil>>) ELSE meta
    /\ UNCHANGED <<role, log, dur, ghosts, commit, tablet, cand, vote, sent, told, ack, history>>

\* A new term and a vote for itself.  `asked`: by an operator, or by a leadership transfer.
\* Code: Raft::start_election, election.rs.
StartElection(s, asked) ==
    LET t == Term(s) + 1
        m == <<t, s>>
        voters == Voters(Config(log[s]))
        won == pre[t][s] # NotAsked /\ IsMajority(pre[t][s].yes, voters)
    IN
    /\ Runs(s) /\ role[s] # "L" /\ t <= MaxTerm
    /\ On("candidate") => s \in voters
    /\ (PreVote /\ On("prevote")) => asked \/ won
    /\ meta' = Metadata(s, m)
    /\ role' = [role EXCEPT ![s] = "C"]
    /\ cand' = [cand EXCEPT ![t][s] = [last |-> Last(log[s]), voters |-> voters, fair |-> asked \/ won]]
    /\ vote' = IF Eager THEN Released(s, <<m>>, 1) ELSE vote
    /\ bad' = bad \union Flag("two votes", VotedTwice(s, vote'))
    /\ UNCHANGED <<log, dur, ghosts, commit, tablet, pre, sent, told, ack, committed, copies>>

\* A vote in term t for i, which has sent its requests together with its own vote.  Tombstones vote too.
\* Code: Raft::decide, election.rs; decide_vote, vote.rs.
GrantVote(s, t, i) ==
    LET m == <<t, i>> IN
    /\ cand[t][i] # NotAsked /\ vote[t][i] = i /\ s # i /\ Answers(s) /\ Sighted(s)
    /\ t >= Term(s)
    /\ On("onevote") => (t = Term(s) => Voted(s) = Nil)
    /\ On("uptodate") => Geq(cand[t][i].last, Known(s))
    /\ ~(t = Term(s) /\ Voted(s) = i)
    /\ meta' = Metadata(s, m)
    /\ role' = [role EXCEPT ![s] = "F"]
    /\ vote' = IF Eager \/ ~On("votedurable") THEN Released(s, <<m>>, 1) ELSE vote
    /\ bad' = bad \union Flag("two votes", VotedTwice(s, vote')) \union Flag("blind vote", IsBlind(s))
    /\ UNCHANGED <<log, dur, ghosts, commit, tablet, pre, cand, sent, told, ack, committed, copies>>

\* The k-th version of the metadata is durable; replies that waited for it leave.
\* Code: Raft::store_meta and Raft::meta_persisted, durability_gate.rs.
MetaPersist(s, k) ==
    LET m == SubSeq(meta[s], k, Len(meta[s])) IN
    /\ k \in 2..Len(meta[s]) /\ down[s] = "up"
    /\ meta' = [meta EXCEPT ![s] = m]
    /\ vote' = Released(s, meta[s], k)
    /\ bad' = bad \union Flag("two votes", VotedTwice(s, vote'))
    /\ ack' = IF data[s] = "R" THEN Acknowledged(s, m, log[s], dur[s]) ELSE ack
    /\ UNCHANGED <<role, log, dur, ghosts, commit, tablet, pre, cand, sent, told, committed, copies>>

\* A message of a later term: adopt the term, follow.
\* Code: Raft::see_term, election.rs.
SeeTerm(s, t) ==
    /\ Answers(s) /\ t > Term(s)
    /\ \E x \in Server : cand[t][x] # NotAsked
    /\ meta' = Metadata(s, <<t, Nil>>)
    /\ role' = [role EXCEPT ![s] = "F"]
    /\ UNCHANGED <<log, dur, ghosts, commit, tablet, network, history>>

\* History's check of a new leader of term t: its log holds every entry committed in earlier terms.
Lacks(lg, t) ==
    \E n \in 1..Len(committed) :
        committed[n][2] < t /\ ~(n <= Len(lg) /\ lg[n] = committed[n][1])

\* Code: Raft::count_votes, election.rs; Raft::become_leader, leader.rs.
BecomeLeader(i) ==
    LET t == Term(i)
        extra == IF On("majority") THEN 0 ELSE 2
    IN
    /\ Runs(i) /\ role[i] = "C"
    /\ On("candidate") => i \in Voters(Config(log[i]))
    /\ LET yes == {x \in cand[t][i].voters : vote[t][x] = i} IN
       2 * Cardinality(yes) + extra > Cardinality(cand[t][i].voters)
    /\ role' = [role EXCEPT ![i] = "L"]
    /\ sent' = [sent EXCEPT ![t] = [leader |-> i, log |-> log[i]]]
    /\ told' = [told EXCEPT ![t] = commit[i]]
    /\ bad' = bad \union Flag("two leaders", Sender(t) # Nil)
                  \union Flag("incomplete leader", Lacks(log[i], t))
    /\ UNCHANGED <<meta, log, dur, ghosts, commit, tablet, pre, cand, vote, ack, committed, copies>>

\* Steps down in its own term: on request, or because no majority replies.
\* Code: Raft::step_down, leader.rs; Raft::clear_known_leader, election.rs.
StepDown(s) ==
    /\ Runs(s) /\ role[s] # "F"
    /\ role' = [role EXCEPT ![s] = "F"]
    /\ UNCHANGED <<meta, log, dur, ghosts, commit, tablet, network, history>>

-----------------------------------------------------------------------------
(* Replication.                                                             *)

\* The leader appends an entry to its log; followers may receive it from now on, its own disk may hold it later.
LeaderAppend(i, e) ==
    /\ IsLeader(i) /\ Len(log[i]) < MaxLen
    /\ log' = [log EXCEPT ![i] = Append(@, e)]
    /\ dur' = IF Eager THEN [dur EXCEPT ![i] = Len(log[i]) + 1] ELSE dur
    /\ sent' = [sent EXCEPT ![Term(i)].log = Append(log[i], e)]
    /\ UNCHANGED <<meta, role, ghosts, commit, tablet, pre, cand, vote, told, ack, committed, copies>>

\* A write, a schema change, or the no-op of a new leader.
\* Code: Raft::append_own, leader.rs.
ClientAppend(i, time) == LeaderAppend(i, Write(Term(i), log[i], time)) /\ UNCHANGED bad

\* The log up to n is durable.  Entries removed by a truncation that is durable by now can not come back.
Durable(s, n) ==
    /\ dur' = [dur EXCEPT ![s] = Max(@, n)]
    /\ ghosts' = [ghosts EXCEPT ![s] = {g \in @ : g.after >= n}]

\* Code: Raft::persisted, follower.rs.
LeaderPersist(i, n) ==
    /\ IsLeader(i) /\ n \in dur[i] + 1..Len(log[i])
    /\ Durable(i, n)
    /\ UNCHANGED <<meta, role, log, commit, tablet, network, history>>

\* Code: Raft::persisted and Raft::reply_to_updates, follower.rs.
FollowerPersist(s, n) ==
    /\ Runs(s) /\ role[s] # "L" /\ n \in 1..Len(log[s])
    /\ n > dur[s] \/ \E g \in ghosts[s] : g.after < n
    /\ Durable(s, n)
    /\ ack' = Acknowledged(s, meta[s], log[s], Max(dur[s], n))
    /\ UNCHANGED <<meta, role, log, commit, tablet, pre, cand, vote, sent, told, history>>

\* The disk may still hold entries after index n that memory has dropped.
Dropped(s, n) ==
    IF Eager \/ n >= Len(log[s]) THEN ghosts
    ELSE [ghosts EXCEPT ![s] = @ \union {[after |-> n, log |-> log[s], dur |-> dur[s]]}]

\* Entries after n are truncated, because the leader has another entry at n + 1.
\* Code: Raft::truncate_after, follower.rs.
AbortPending(s, t, n) ==
    LET lg == sent[t].log IN
    /\ Runs(s) /\ t = Term(s) /\ Sender(t) \notin {Nil, s}
    /\ n < Len(log[s]) /\ n < Len(lg) /\ log[s][n + 1] # lg[n + 1]
    /\ log' = [log EXCEPT ![s] = SubSeq(@, 1, n)]
    /\ dur' = [dur EXCEPT ![s] = Min(@, n)]
    /\ ghosts' = Dropped(s, n)
    /\ role' = [role EXCEPT ![s] = "F"]
    /\ bad' = bad \union Flag("truncated", n < commit[s])
    /\ UNCHANGED <<meta, commit, tablet, network, committed, copies>>

\* A request of the leader of term t, as one step: the entries after `prev` up to n, and its commit index c.
\* Conflicting entries are truncated, missing ones appended, and all that is now known to agree may be committed.
\* Code: Raft::take_update, follower.rs: check_update, follow, check_preceding, take_entries.
Receive(s, t, prev, n, c) ==
    LET lg == sent[t].log
        mine == log[s]
        k == IF On("prevcheck") THEN Agree(mine, lg) ELSE Min(Min(Len(mine), Len(lg)), n)
        fresh == n > Len(mine) \/ n > k
        new == IF fresh THEN SubSeq(mine, 1, k) \o SubSeq(lg, k + 1, n) ELSE mine
        m == IF t > Term(s) THEN Metadata(s, <<t, Nil>>) ELSE meta
        synced == IF ~fresh THEN dur[s] ELSE IF Eager THEN n ELSE Min(dur[s], k)
        cap == IF On("commitmatch") THEN Min(n, c) ELSE c
    IN
    /\ Runs(s) /\ Sender(t) \notin {Nil, s}
    /\ On("termcheck") => t >= Term(s)
    /\ prev <= k /\ prev <= n /\ n <= Len(lg) /\ c <= told[t]
    /\ meta' = m
    /\ role' = [role EXCEPT ![s] = "F"]
    /\ log' = [log EXCEPT ![s] = new]
    /\ dur' = [dur EXCEPT ![s] = synced]
    /\ ghosts' = IF fresh THEN Dropped(s, k) ELSE ghosts
    /\ commit' = [commit EXCEPT ![s] = Max(@, cap)]
    /\ ack' = IF m[s][1][1] < t THEN ack
              ELSE [ack EXCEPT ![t][s] = Max(@, IF On("ackdurable") THEN Min(n, synced) ELSE n)]
    /\ bad' = bad \union Flag("truncated", fresh /\ k < commit[s])
    /\ UNCHANGED <<tablet, pre, cand, vote, sent, told, committed, copies>>

\* The same in the steps that the code reports: FollowerAppend after SeeTerm and AbortPending, then FollowerCommit.
\* Code: the same, up to its note.
FollowerAppend(s, t, prev, n) ==
    LET k == Agree(log[s], sent[t].log) IN
    /\ t = Term(s) /\ (n > k => Len(log[s]) = k)
    /\ Receive(s, t, prev, n, 0)

\* Code: Raft::set_committed, leader.rs, called by Raft::take_update.
FollowerCommit(s, n) ==
    LET t == Term(s) IN
    /\ Runs(s) /\ role[s] # "L" /\ t > 0 /\ Sender(t) \notin {Nil, s}
    /\ n > commit[s] /\ n <= told[t]
    /\ n <= Agree(log[s], sent[t].log)
    /\ commit' = [commit EXCEPT ![s] = n]
    /\ UNCHANGED <<meta, role, log, dur, ghosts, tablet, network, history>>

\* Entries up to n are durable on a majority, and the last of them is of the leader's own term (figure 8).
MayCommit(i, n) ==
    LET t == Term(i)
        c == Config(log[i])
        who == IF On("votersonly") THEN Voters(c) ELSE Members(c)
        has == {x \in who : IF x = i THEN dur[i] >= n \/ ~On("selfdurable") ELSE ack[t][x] >= n}
    IN /\ On("ownterm") => log[i][n][1] = t
       /\ 2 * Cardinality(has) > Cardinality(Voters(c))

\* Code: Raft::advance_commit and Raft::set_committed, leader.rs.
AdvanceCommit(i, n) ==
    LET t == Term(i)
        lg == log[i]
    IN
    /\ IsLeader(i) /\ n \in commit[i] + 1..Len(lg) /\ MayCommit(i, n)
    /\ commit' = [commit EXCEPT ![i] = n]
    /\ told' = [told EXCEPT ![t] = n]
    /\ committed' = committed \o [j \in 1..Max(0, n - Len(committed)) |-> <<lg[Len(committed) + j], t>>]
    /\ bad' = bad \union Flag("diverged", \E j \in commit[i] + 1..Min(n, Len(committed)) : committed[j][1] # lg[j])
    /\ UNCHANGED <<meta, role, log, dur, ghosts, tablet, pre, cand, vote, sent, ack, copies>>

-----------------------------------------------------------------------------
(* A crash and a restart.  `m` is the metadata and `lg` the log after the   *)
(* restart: everything that was durable, and some of the rest.              *)

Survives(s, lg, d) == [old |-> lg, atleast |-> d]
Surviving(s) == {Survives(s, log[s], dur[s])} \union {Survives(s, g.log, g.dur) : g \in ghosts[s]}

\* Code: Raft::new, mod.rs, after replica/bootstrap.rs or replica::tombstone::recover.
Restart(s, m, lg, c) ==
    /\ Exists(s)
    /\ c <= Min(commit[s], Len(lg))
    /\ meta' = [meta EXCEPT ![s] = <<IF On("persist") THEN m ELSE <<m[1], Nil>>>>]
    /\ role' = [role EXCEPT ![s] = "F"]
    /\ log' = [log EXCEPT ![s] = lg]
    /\ dur' = [dur EXCEPT ![s] = Len(lg)]
    /\ ghosts' = [ghosts EXCEPT ![s] = {}]
    /\ commit' = [commit EXCEPT ![s] = c]
    /\ vote' = Released(s, <<m>>, 1)
    /\ data' = [data EXCEPT ![s] = IF @ = "Y" THEN "T" ELSE @]
    /\ tomb' = IF data[s] = "Y" /\ ~On("keeptomb") THEN [tomb EXCEPT ![s] = <<0, 0>>] ELSE tomb
    /\ down' = [down EXCEPT ![s] = "up"]
    /\ copy' = [copy EXCEPT ![s] = Nil]
    /\ bad' = bad \union Flag("amnesia", data[s] # "R" /\ tomb'[s] # tomb[s])
    /\ UNCHANGED <<open, pre, cand, sent, told, ack, committed, copies>>

\* The worst case of a crash: everything that was not synced is lost.
Crash(s) ==
    /\ data[s] = "Y" \/ role[s] # "F" \/ dur[s] < Len(log[s]) \/ Len(meta[s]) > 1 \/ down[s] # "up"
    /\ Restart(s, meta[s][1], SubSeq(log[s], 1, dur[s]), Min(commit[s], dur[s]))

-----------------------------------------------------------------------------
(* Failures.  A disk's error ends a replica and nothing else: it stays in    *)
(* the configuration and replies to nothing, and its data stays on the disk  *)
(* until the server restarts, the replica is deleted, or it is copied over.  *)

\* In use: it still knows the end of its log.  `s` may also be a tombstone or a copy whose deletion failed.
\* Code: Replica::fail, engine/src/replica/mod.rs; TabletManager::delete and TabletManager::give_back, node/src/tserver.
Fail(s) ==
    /\ Answers(s)
    /\ down' = [down EXCEPT ![s] = "failed"]
    /\ role' = [role EXCEPT ![s] = "F"]
    /\ UNCHANGED <<meta, log, dur, ghosts, commit, data, tomb, copy, open, network, history>>

\* At a restart: the metadata m was read, the log was not.  Its end may still be known (`knows`): of a tombstone, or of
\* a replica that was just closed.
\* Code: TabletManager::open and TabletManager::load, node/src/hosting/tablet_manager.rs.
FailOpen(s, m, knows) ==
    /\ Exists(s)
    /\ down' = [down EXCEPT ![s] = IF knows THEN "failed" ELSE "unopened"]
    /\ role' = [role EXCEPT ![s] = "F"]
    /\ meta' = [meta EXCEPT ![s] = <<m>>]
    /\ UNCHANGED <<log, dur, ghosts, commit, data, tomb, copy, open, network, history>>
=============================================================================
