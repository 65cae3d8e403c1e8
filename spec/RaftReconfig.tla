---------------------------- MODULE RaftReconfig ----------------------------
(***************************************************************************)
(* Changes of a tablet's configuration, one at a time, in force from their *)
(* append (chapter 4 of Raft's dissertation), as Kudu does them: a new     *)
(* replica joins as a learner (NON_VOTER), the leader promotes it once it  *)
(* has caught up, and the master then asks for the eviction of the one it  *)
(* replaces ("3-4-3").                                                     *)
(*                                                                         *)
(* The no-op rule: a leader changes nothing before an entry of its own     *)
(* term is committed.  Without it two leaders of successive terms can each *)
(* append a change to the same configuration, and their majorities need    *)
(* not meet: the bug of 2015 (raft-dev, "bug in single-server membership   *)
(* changes").                                                              *)
(***************************************************************************)
EXTENDS Raft

\* cas: the index of the configuration on which the request was decided, or Nil.
\* Code: Raft::change_config, check_change, check_promoted, append_config, membership.rs.
ConfigAppend(i, voters, learners, cas) ==
    LET lg == log[i]
        t == Term(i)
        c == Config(lg)
        promoted == voters \intersect Learners(c)
    IN
    /\ IsLeader(i)
    /\ On("pending") => Index(c) <= commit[i]
    /\ On("noop") => commit[i] > 0 /\ lg[commit[i]][1] = t
    /\ On("onevoter") => Cardinality((voters \ Voters(c)) \union (Voters(c) \ voters)) <= 1
    /\ On("keepleader") => i \in voters
    /\ (On("configcas") /\ cas # Nil) => cas = Index(c)
    /\ On("caughtup") => \A x \in promoted : ack[t][x] + Lag >= commit[i]
    /\ LeaderAppend(i, Change(t, lg, voters, learners))
    /\ UNCHANGED bad

-----------------------------------------------------------------------------
(* Sources of requests.  Free: an operator, for anything (the paper's add   *)
(* and remove of voters).  Guided: the leader and the master as Kudu has    *)
(* them.                                                                    *)

ChangesIn(lg) == Cardinality({n \in 1..Len(lg) : Index(lg[n][2]) = n})

FreeChange(i) ==
    /\ IsLeader(i) /\ ChangesIn(log[i]) < MaxCfg
    /\ LET c == Config(log[i]) IN
       \E x \in Server :
           \/ x \notin Members(c) /\ ConfigAppend(i, Voters(c) \union {x}, Learners(c), Nil)
           \/ x \in Members(c) /\ ConfigAppend(i, Voters(c) \ {x}, Learners(c) \ {x}, Nil)

\* Two voters exchanged in one request, which the rule of one voter at a time forbids.
Exchange(i) ==
    /\ ~On("onevoter") /\ IsLeader(i) /\ ChangesIn(log[i]) < MaxCfg
    /\ LET c == Config(log[i]) IN
       \E x \in Server \ Voters(c), y \in Voters(c) \ {i} :
           ConfigAppend(i, (Voters(c) \ {y}) \union {x}, Learners(c) \ {x}, Nil)

\* The leader promotes a learner that is within a batch of its commit index.
\* Code: Raft::promote, membership.rs.
Promote(i) ==
    /\ IsLeader(i) /\ ChangesIn(log[i]) < MaxCfg
    /\ LET c == Config(log[i]) IN
       \E x \in Learners(c) : ConfigAppend(i, Voters(c) \union {x}, Learners(c) \ {x}, Index(c))

\* The master acts on a configuration that a leader once reported, perhaps long ago, and names it.
Reported == {FirstConfig} \union {committed[n][1][2] : n \in 1..Len(committed)}
Replication == Cardinality(InitVoters)

\* Code: engine/src/catalog/repair.
AddsAsOf(i, r) ==
    /\ IsLeader(i) /\ ChangesIn(log[i]) < MaxCfg
    /\ Cardinality(Members(r)) <= Replication
    /\ LET c == Config(log[i]) IN
       \E x \in Server \ Members(c) :
           ConfigAppend(i, Voters(c), Learners(c) \union {x}, Index(r))
MasterAdds(i) == \E r \in Reported : AddsAsOf(i, r)

\* Eviction, only if the remaining up-to-date members are a majority that can commit it.
\* Code: engine/src/catalog/repair; Raft::check_majority_lives, membership.rs.
EvictsAsOf(i, r) ==
    /\ IsLeader(i) /\ ChangesIn(log[i]) < MaxCfg
    /\ Cardinality(Members(r)) > Replication
    /\ LET c == Config(log[i]) IN
       \E x \in Members(r) \intersect Members(c) :
           LET rest == Voters(c) \ {x} IN
           /\ On("liverest") => IsMajority({y \in rest : y = i \/ ack[Term(i)][y] >= commit[i]}, rest)
           /\ ConfigAppend(i, rest, Learners(c) \ {x}, Index(r))
MasterEvicts(i) == \E r \in Reported : EvictsAsOf(i, r)
=============================================================================
