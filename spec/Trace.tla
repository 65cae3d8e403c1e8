------------------------------- MODULE Trace -------------------------------
(***************************************************************************)
(* Trace checking: the spec must allow every action of the code. TraceData *)
(* is generated from trace files (see README.md, Traces): Traces is a      *)
(* tuple of traces, each a tuple of events <<action, server, parameters,   *)
(* state after it>>.                                                       *)
(*                                                                         *)
(* An event fixes the action and its parameters, so every state has at     *)
(* most one successor, and the view tells all states apart by the place in *)
(* the trace.  A trace is followed to its end, or it stops before the      *)
(* first event that the spec does not allow.                               *)
(*                                                                         *)
(* The server's actions on a replica that does not run are noted when they *)
(* are durable.  A crash may come between the two: before a restart, or    *)
(* the copy that follows one, the spec may take such an action without a   *)
(* note (`cut`).                                                           *)
(***************************************************************************)
EXTENDS Properties, TraceData

VARIABLES
    tr,     \* the trace
    at,     \* its next event
    cut,    \* the action before the next event of which there is no note, or Nil
    safe    \* the safe time of each replica; times are ranks, in the order of the timestamps

tvars == <<vars, tr, at, cut, safe>>
View == <<tr, at, cut>>

\* TLC would evaluate a big constant again at each use.
ASSUME TLCSet(1, Traces)
Events == TLCGet(1)

-----------------------------------------------------------------------------
(* Restarts: the state after a crash, within the allowed states.            *)

\* An only voter elects itself while it boots, and stores the election before it reports anything: after a crash in
\* between it returns in a term without a note.
OpenedUnheard(s, m) ==
    /\ data[s] = "R" /\ Voters(ConfigAt(log[s], commit[s])) = {s}
    /\ m[1] > Term(s) /\ m[2] = s

CameBack(s, v, post) ==
    LET m == <<post[1], v>>
        n == post[2][2]
    IN
    /\ (\E j \in 1..Len(meta[s]) : meta[s][j] = m) \/ OpenedUnheard(s, m)
    /\ IF data[s] = "R"
       THEN \E x \in Surviving(s) :
                /\ n \in x.atleast..Len(x.old) /\ OpIdAt(x.old, n) = post[2]
                /\ Restart(s, m, SubSeq(x.old, 1, n), post[3])
       ELSE Restart(s, m, <<>>, 0)

\* The disk returns the metadata, but not the replica.
\* If the metadata can not be read either, the code reports term 0 and loses nothing that it could use.
NotOpened(s, v, post) ==
    LET said == <<post[1], v>>
        m == IF (\E j \in 1..Len(meta[s]) : meta[s][j] = said) \/ OpenedUnheard(s, said) THEN said ELSE Newest(meta[s])
    IN
    /\ post[1] = m[1] \/ post[1] = 0
    /\ FailOpen(s, m, post[2] # <<0, 0>>)

\* The replica as it was created.
Create(s, voters, learners) ==
    /\ voters = InitVoters /\ learners = InitLearners /\ s \in First
    /\ data[s] = "R" /\ meta[s] = <<<<0, Nil>>>> /\ log[s] = <<>>
    /\ UNCHANGED vars

\* A replica without data leaves a tombstone, with the metadata m.
LeavesWith(s, m) ==
    /\ data' = [data EXCEPT ![s] = "T"]
    /\ tomb' = [tomb EXCEPT ![s] = Position(s)]
    /\ down' = [down EXCEPT ![s] = "up"]
    /\ meta' = [meta EXCEPT ![s] = <<m>>]
    /\ vote' = Released(s, meta[s], Len(meta[s]))
    /\ role' = [role EXCEPT ![s] = "F"]
    /\ log' = [log EXCEPT ![s] = <<>>]
    /\ dur' = [dur EXCEPT ![s] = 0]
    /\ ghosts' = [ghosts EXCEPT ![s] = {}]
    /\ commit' = [commit EXCEPT ![s] = 0]
    /\ copy' = [copy EXCEPT ![s] = Nil]
    /\ UNCHANGED <<open, pre, cand, sent, told, ack, committed, copies, bad>>

\* A copy that failed while it began: the OpId in the superblock was replaced, and there is no note of the beginning.
\* The metadata may have been merged or not.
NeverCopied(s, post) ==
    /\ data[s] # "Y" /\ open[s] # Nil
    /\ post[1] \in {Term(s), open[s].term} /\ post[1] >= Term(s)
    /\ LeavesWith(s, IF post[1] > Term(s) THEN <<post[1], Nil>> ELSE Newest(meta[s]))

\* The disk's error that failed a replica may have kept its newest metadata from being stored.
NotStored(s, n, post) ==
    /\ data[s] = "R" /\ down[s] # "up"
    /\ n # Nil /\ ~IsBlind(s) => Index(ConfigAt(log[s], commit[s])) <= n
    /\ \E k \in 1..Len(meta[s]) - 1 : meta[s][k][1] = post[1] /\ LeavesWith(s, meta[s][k])

\* Safe time binds: no entry at or below it is added later.
KeepsPromise(s) == \A n \in Len(log[s]) + 1..Len(log'[s]) : log'[s][n][3] = 0 \/ log'[s][n][3] > safe[s]

Act(a, s, x, post) ==
    CASE a = "StartPreElection" -> x[1] = Term(s) + 1 /\ StartPreElection(s)
      [] a = "GrantPreVote"     -> GrantPreVote(s, x[2], x[1])
      [] a = "StartElection"    -> x[1] = Term(s) + 1 /\ StartElection(s, x[2])
      [] a = "GrantVote"        -> GrantVote(s, x[2], x[1])
      [] a = "SeeTerm"          -> SeeTerm(s, x[1])
      [] a = "MetaPersist"      -> \E k \in 2..Len(meta[s]) : meta[s][k] = <<x[1], x[2]>> /\ MetaPersist(s, k)
      [] a = "BecomeLeader"     -> BecomeLeader(s)
      [] a = "StepDown"         -> StepDown(s)
      [] a = "ClientAppend"     -> ClientAppend(s, x[2]) /\ Last(log'[s]) = x[1]
      [] a = "ConfigAppend"     -> ConfigAppend(s, x[2], x[3], x[4]) /\ Last(log'[s]) = x[1]
      [] a = "LeaderPersist"    -> OpIdAt(log[s], x[1][2]) = x[1] /\ LeaderPersist(s, x[1][2])
      [] a = "AbortPending"     -> Sender(Term(s)) = x[1] /\ AbortPending(s, Term(s), x[2])
      [] a = "FollowerAppend"   -> /\ Sender(Term(s)) = x[1]
                                   /\ x[3][2] <= Len(sent[Term(s)].log)
                                   /\ OpIdAt(sent[Term(s)].log, x[2][2]) = x[2]
                                   /\ OpIdAt(sent[Term(s)].log, x[3][2]) = x[3]
                                   /\ FollowerAppend(s, Term(s), x[2][2], x[3][2])
                                   /\ KeepsPromise(s)
      [] a = "FollowerPersist"  -> OpIdAt(log[s], x[1][2]) = x[1] /\ FollowerPersist(s, x[1][2])
      [] a = "AdvanceCommit"    -> AdvanceCommit(s, post[3])
      [] a = "FollowerCommit"   -> FollowerCommit(s, post[3])
      [] a = "CopyOpen"         -> OpIdAt(log[s], x[2][2]) = x[2] /\ CopyOpen(s, x[1], x[2][2])
      [] a = "CopyStart"        -> open[s] # Nil /\ open[s].source = x[1] /\ CopyStart(s, open[s], x[2])
      [] a = "CopyFinish"       -> CopyFinish(s)
      [] a = "CopyAbort"        -> CopyAbort(s) \/ NeverCopied(s, post)
      [] a = "Tombstone"        -> Tombstone(s, x[1]) \/ NotStored(s, x[1], post)
      [] a = "Delete"           -> Delete(s)
      [] a = "Restart"          -> CameBack(s, x[1], post)
      [] a = "Fail"             -> Fail(s)
      [] a = "FailOpen"         -> NotOpened(s, x[1], post)
      [] a = "Create"           -> Create(s, x[1], x[2])
      [] a = "SafeTimeAdvance"  -> Runs(s) /\ x[1] >= safe[s] /\ UNCHANGED vars

-----------------------------------------------------------------------------
\* The state after an event as the code reports it: term, last OpId, commit index, role, data state.
Shown(s) == IF down[s] = "up" THEN data[s] ELSE "F"
After(s) == <<Term(s)', Known(s)', IF down'[s] = "up" THEN commit'[s] ELSE 0, role'[s], Shown(s)'>>
\* Unreadable metadata has no term.
Matches(s, post) ==
    \/ After(s) = post
    \/ (IsBlind(s)' \/ Shown(s)' = "F") /\ post[1] = 0 /\ After(s) = [post EXCEPT ![1] = Term(s)']
Same(s, post) == IF Matches(s, post) THEN TRUE ELSE PrintT(<<"told", tr, at, post, "spec", After(s)>>) /\ FALSE
Harmless == IF bad' = {} THEN TRUE ELSE PrintT(<<"violates", tr, at, bad'>>) /\ FALSE

TraceInit == Init /\ tr \in 1..Len(Events) /\ at = 1 /\ cut = Nil /\ safe = [s \in Server |-> 0]
Noted ==
    /\ at <= Len(Events[tr])
    \* Bound, not defined: a definition would be primed with what it is used in.
    /\ \E e \in {Events[tr][at]} : \E s \in {e[2]} :
       /\ Act(e[1], s, e[3], e[4])
       /\ Same(s, e[4])
       /\ Harmless
       /\ safe' = IF e[1] = "SafeTimeAdvance" THEN [safe EXCEPT ![s] = e[3][1]]
                  ELSE IF e[1] \in {"Restart", "CopyFinish"} THEN [safe EXCEPT ![s] = 0] ELSE safe
    /\ at' = at + 1 /\ tr' = tr /\ cut' = Nil

\* State that became durable at s before the crash that ended with restart e.
CutOff(s, e) ==
    LET t == e[4][1]
        v == e[3][1]
        now == e[4][5]
    IN
    \/ now = "R" /\ CopyFinish(s) /\ cut' = "CopyFinish"
    \/ now = "T" /\ data[s] = "R" /\ Tombstone(s, Nil) /\ cut' = "Tombstone"
    \/ now = "T" /\ (data[s] = "N" \/ t > Term(s)) /\ CopyStart(s, open[s], t) /\ cut' = "CopyStart"
    \/ now = "T" /\ data[s] # "R" /\ v # Nil /\ GrantVote(s, t, v) /\ cut' = "GrantVote"
    \/ now = "T" /\ data[s] # "R" /\ v = Nil /\ SeeTerm(s, t) /\ cut' = "SeeTerm"

\* The master's CreateTablet did not reach s, which has no note so far: a copy is its first state of the tablet.
NeverMade(s) ==
    /\ data[s] = "R" /\ \A k \in 1..at - 1 : Events[tr][k][2] # s
    /\ data' = [data EXCEPT ![s] = "N"]
    /\ cut' = "Create"
    /\ UNCHANGED <<replica, tomb, down, copy, open, network, history>>

\* A server forgets deleted tablets at its restart (node/src/hosting/deleted_tablets.rs): a leader that the drop of the
\* table has not reached may copy one there once more, and the master deletes it again.
Unburied(s) ==
    /\ data[s] = "D"
    /\ data' = [data EXCEPT ![s] = "N"]
    /\ cut' = "Delete"
    /\ UNCHANGED <<replica, tomb, down, copy, open, network, history>>

\* A crash came between the delete and its note.  Notes of s do not show it: notes of others show the dropped table.
DropCutOff(s) ==
    /\ data[s] = "R" /\ down[s] = "up"
    /\ \E k \in at + 1..Len(Events[tr]) : Events[tr][k][1] = "Delete" /\ Events[tr][k][2] # s
    /\ Delete(s)
    /\ cut' = "Dropped"

Unnoted ==
    /\ at <= Len(Events[tr])
    /\ \E e \in {Events[tr][at]} : \E s \in {e[2]} :
        \/ cut = Nil /\ e[1] = "Restart" /\ CutOff(s, e)
        \/ cut = Nil /\ e[1] = "CopyStart" /\ (NeverMade(s) \/ DropCutOff(s))
        \/ cut \in {Nil, "Dropped"} /\ e[1] = "CopyStart" /\ Unburied(s)
    /\ bad' = {}
    /\ UNCHANGED <<tr, at, safe>>

TraceNext == Noted \/ Unnoted
TraceSpec == TraceInit /\ [][TraceNext]_tvars

\* Reports, not properties: the traces that were followed to the end, and the path of the others.
Followed == IF at <= Len(Events[tr]) THEN TRUE ELSE PrintT(<<"followed", tr>>)
Told == IF cut # Nil THEN TRUE ELSE PrintT(<<"at", tr, at, [s \in Server |->
            <<Term(s), Voted(s), role[s], Last(log[s]), dur[s], commit[s], Shown(s), tomb[s], Config(log[s])>>]>>)
=============================================================================
