------------------------------ MODULE Directed ------------------------------
(***************************************************************************)
(* Behaviours for directed tests of the code: `did` holds the last step    *)
(* and the resulting state of its server.                                  *)
(*                                                                         *)
(* The steps are those of the models, merged where the code acts at once:  *)
(* a new leader appends its no-op before anything else happens. `did` is   *)
(* not part of the view, so a search here visits the states of a search of *)
(* the model.                                                              *)
(*                                                                         *)
(* Code: engine/testkit/src/group/script.rs drives a group of Raft cores   *)
(* along a script, with one function for each of these steps.              *)
(***************************************************************************)
EXTENDS Seeds

VARIABLE did    \* <<action, server, parameters, the server's state after it>>

dvars == <<vars, at, did>>
DirectedView == <<vars, at>>

Terms0(lg) == [n \in 1..Len(lg) |-> lg[n][1]]
StateOf(s) ==
    <<Term(s), Voted(s), role[s], IF down[s] = "up" THEN data[s] ELSE "F", Known(s), commit[s], Terms0(log[s]),
      Voters(Config(log[s])), Learners(Config(log[s]))>>
Tell(action, s, x) == did' = <<action, s, x, StateOf(s)'>>

-----------------------------------------------------------------------------
(* Steps that the code takes at once.                                       *)

WithoutNoOp == {i \in Server : IsLeader(i) /\ \A n \in 1..Len(log[i]) : log[i][n][1] # Term(i)}
AtOnce(s) == WithoutNoOp \in {{}, {s}}

-----------------------------------------------------------------------------
DElect ==
    \/ \E s \in Server : PreVote /\ StartPreElection(s) /\ Tell("StartPreElection", s, <<>>)
    \/ \E s, i \in Server, t \in Terms :
        /\ GrantPreVote(s, t, i) /\ s \notin pre[t][i].yes /\ s \in Voters(Config(log[i]))
        /\ Tell("GrantPreVote", s, <<i, t>>)
    \/ \E s \in Server : StartElection(s, FALSE) /\ Tell("StartElection", s, <<~PreVote>>)
    \/ \E s, i \in Server, t \in Terms :
        GrantVote(s, t, i) /\ s \in cand[t][i].voters /\ Tell("GrantVote", s, <<i, t>>)
    \/ \E i \in Server : Len(log[i]) < MaxLen /\ BecomeLeader(i) /\ Tell("BecomeLeader", i, <<>>)
    \/ \E s \in Server, t \in Terms : role[s] # "F" /\ SeeTerm(s, t) /\ Tell("SeeTerm", s, <<t>>)

\* A request of the leader of term t: its entries after `prev`, up to n, and its commit index c.
Takes(s, t, n) ==
    LET lg == sent[t].log
        prev == IF On("prevcheck") THEN Agree(log[s], lg) ELSE Min(Min(Len(log[s]), Len(lg)), n)
    IN Receive(s, t, Agree(log[s], lg), n, told[t]) /\ Tell("Receive", s, <<Sender(t), t, prev, n, told[t]>>)

DReceive(s, t) ==
    /\ Sender(t) # Nil /\ data[s] = "R"
    /\ LET k == Agree(log[s], sent[t].log) IN
       \E n \in IF On("prevcheck") THEN {k, k + 1} ELSE k..Len(sent[t].log) :
           n <= Len(sent[t].log) /\ SentTo(s, t, n) /\ Takes(s, t, n)
    \* A request that changes nothing is no useful step.
    /\ <<meta, role, log, commit, ack>>' # <<meta, role, log, commit, ack>>

DReplicate ==
    \/ \E i \in Server : ClientAppend(i, 0) /\ Tell("ClientAppend", i, <<>>)
    \/ \E s \in Server, t \in Terms : DReceive(s, t)
    \/ \E i \in Server : CommitMost(i) /\ Tell("AdvanceCommit", i, <<>>)

DPersist ==
    /\ ~Eager
    /\ \E s \in Server :
        \/ MetaPersist(s, Len(meta[s])) /\ Tell("MetaPersist", s, <<>>)
        \/ LeaderPersist(s, Len(log[s])) /\ Tell("LogPersist", s, <<>>)
        \/ FollowerPersist(s, Len(log[s])) /\ Tell("LogPersist", s, <<>>)

\* A crash during a truncation can leave one of several logs, which a script does not determine.  Nor does it determine
\* the treatment of entries that are newer than the term on the disk.
DLose == \E s \in Server :
    /\ data[s] = "Y" \/ (ghosts[s] = {} /\ data[s] = "R" /\ DurableTerm(s) >= OpIdAt(log[s], dur[s])[1])
    /\ Crash(s) /\ Tell("Restart", s, <<>>)

Changed(i, cas) ==
    LET new == Config(log'[i]) IN Tell("ConfigAppend", i, <<Voters(new), Learners(new), cas>>)

DFree == \E i \in Server : (FreeChange(i) \/ Exchange(i)) /\ Changed(i, Nil)
DGuided == \E i \in Server :
    \/ Promote(i) /\ Changed(i, Index(Config(log[i])))
    \/ \E r \in Reported : (AddsAsOf(i, r) \/ EvictsAsOf(i, r)) /\ Changed(i, Index(r))

DCopy ==
    \/ \E t \in Terms : LET i == Sender(t) IN
        /\ i # Nil /\ Runs(i)
        /\ \E s \in Members(Config(sent[t].log)) \ {i} :
            CopyStart(s, Offer(i, dur[i]), t) /\ Tell("CopyStart", s, <<i, t>>)
    \/ \E s \in Server : CopyFinish(s) /\ Tell("CopyFinish", s, <<>>)
    \/ \E s \in Server : CopyAbort(s) /\ Tell("CopyAbort", s, <<>>)
    \/ \E s \in Server, n \in 1..Len(committed) :
        /\ Index(committed[n][1][2]) = n /\ s \notin Members(committed[n][1][2])
        /\ Tombstone(s, n) /\ Tell("Tombstone", s, <<n>>)

\* Only replicas fail: tombstones and copies are known by their superblocks.
DFails == \E s \in Server :
    \/ /\ data[s] = "R" /\ \A x \in Server : down[x] = "up" /\ ~IsBlind(x)
       /\ \/ Fail(s) /\ Tell("Fail", s, <<>>)
          \/ FailOpen(s, meta[s][1], FALSE) /\ Tell("FailOpen", s, <<>>)
    \/ down[s] # "up" /\ Tombstone(s, Nil) /\ Tell("Tombstone", s, <<Nil>>)

\* Steps that are possible now.
Together(next) == next /\ AtOnce(did'[2]) /\ (WithoutNoOp # {} => did'[1] = "ClientAppend")

DRaft == DElect \/ DReplicate \/ DPersist \/ DLose
DAny == Together(DRaft \/ DFree \/ DGuided \/ DCopy \/ DFails
                 \/ \E s \in Server : StartElection(s, TRUE) /\ Tell("StartElection", s, <<TRUE>>))

-----------------------------------------------------------------------------
(* The models' behaviours, with `did`.                                      *)

\* A step of a script of Seeds.
DStep(e) ==
    CASE e[1] = "elect"   -> StartElection(e[2], TRUE) /\ Tell("StartElection", e[2], <<TRUE>>)
      [] e[1] = "see"     -> SeeTerm(e[2], e[3]) /\ Tell("SeeTerm", e[2], <<e[3]>>)
      [] e[1] = "vote"    -> GrantVote(e[2], e[3], e[4]) /\ Tell("GrantVote", e[2], <<e[4], e[3]>>)
      [] e[1] = "lead"    -> BecomeLeader(e[2]) /\ Tell("BecomeLeader", e[2], <<>>)
      [] e[1] = "write"   -> ClientAppend(e[2], 0) /\ Tell("ClientAppend", e[2], <<>>)
      [] e[1] = "receive" -> Takes(e[2], e[3], e[4])
      [] e[1] = "commit"  -> CommitMost(e[2]) /\ Tell("AdvanceCommit", e[2], <<>>)

Told(script, next) ==
    IF at <= Len(script)
    \* Bound, not passed: an argument would be primed where it is used.
    THEN \E e \in {script[at]} : DStep(e) /\ at' = at + 1
    ELSE Together(next) /\ at' = at

DInit == SeedInit /\ did = <<"Init", Nil, <<>>, <<>>>>
DirectedRaft == DInit /\ [][Told(<<>>, DRaft)]_dvars
DirectedFree == DInit /\ [][Told(<<>>, DRaft \/ DFree)]_dvars
DirectedGuided == DInit /\ [][Told(<<>>, DRaft \/ DGuided)]_dvars
DirectedCopy == DInit /\ [][Told(<<>>, DRaft \/ DFree \/ DCopy)]_dvars
DirectedFigure8 == DInit /\ [][Told(Figure8c, DRaft)]_dvars
DirectedStale == DInit /\ [][Told(Stale, DRaft \/ DFree \/ DCopy)]_dvars
DirectedStaleFails == DInit /\ [][Told(Stale, DRaft \/ DCopy \/ DFails)]_dvars
DirectedLead == DInit /\ [][Told(Lead, DRaft \/ DFree)]_dvars
=============================================================================
