------------------------------- MODULE Nyala -------------------------------
(***************************************************************************)
(* Elections, replication, changes of configuration and tablet copy        *)
(* together.  Models pick the parts they need: every Next below is a part  *)
(* of the last one, so a property of the whole is one of the part.         *)
(***************************************************************************)
EXTENDS Properties

Elect ==
    \/ \E s \in Server : PreVote /\ StartPreElection(s)
    \/ \E s, i \in Server, t \in Terms : GrantPreVote(s, t, i) /\ s \notin pre[t][i].yes
    \/ \E s \in Server : StartElection(s, FALSE)
    \/ \E s, i \in Server, t \in Terms : GrantVote(s, t, i)
    \/ \E i \in Server : BecomeLeader(i)
    \* Followers learn of a term with the message that matters to them.
    \/ \E s \in Server, t \in Terms : role[s] # "F" /\ SeeTerm(s, t)

\* A request goes to members of a configuration that was in force when it was sent.
SentTo(s, t, n) == \E k \in n..Len(sent[t].log) : s \in Members(ConfigAt(sent[t].log, k))

\* One entry at a time, after the last one that agrees; the newest of the leader's commit indexes.
ReceiveNext(s, t) ==
    /\ Sender(t) # Nil /\ Runs(s)
    /\ LET k == Agree(log[s], sent[t].log) IN
       \E n \in IF On("prevcheck") THEN {k, k + 1} ELSE k..Len(sent[t].log) :
           /\ n <= Len(sent[t].log) /\ SentTo(s, t, n)
           /\ Receive(s, t, k, n, told[t])

CommitMost(i) ==
    /\ IsLeader(i)
    /\ LET S == {n \in commit[i] + 1..Len(log[i]) : MayCommit(i, n)} IN
       S # {} /\ AdvanceCommit(i, CHOOSE n \in S : \A k \in S : k <= n)

Persist ==
    /\ ~Eager
    /\ \E s \in Server :
        \/ MetaPersist(s, Len(meta[s]))
        \/ LeaderPersist(s, Len(log[s]))
        \/ FollowerPersist(s, Len(log[s]))

Replicate ==
    \/ \E i \in Server : ClientAppend(i, 0)
    \/ \E s \in Server, t \in Terms : ReceiveNext(s, t)
    \/ \E i \in Server : CommitMost(i)

Lose == \E s \in Server : Crash(s)

Copy ==
    \/ \E t \in Terms : LeaderCopies(t)
    \/ \E s \in Server : CopyFinish(s)
    \/ \E s \in Server : MasterDeletes(s)

\* One replica at a time is failed, or does not know the end of its log: with more of them a majority may be gone.  The
\* master deletes a failed replica.
Fails ==
    \E s \in Server :
        \/ /\ \A x \in Server : down[x] = "up" /\ ~IsBlind(x)
           /\ \/ Fail(s)
              \/ FailOpen(s, meta[s][1], FALSE)
        \/ down[s] # "up" /\ Tombstone(s, Nil)

FreeChanges == \E i \in Server : FreeChange(i) \/ Exchange(i)
GuidedChanges == \E i \in Server : MasterAdds(i) \/ Promote(i) \/ MasterEvicts(i)

NextRaft == Elect \/ Replicate \/ Persist \/ Lose
NextFree == NextRaft \/ FreeChanges
NextGuided == NextRaft \/ GuidedChanges
NextCopy == NextRaft \/ FreeChanges \/ Copy
NextFails == NextRaft \/ Copy \/ Fails
Next == NextRaft \/ FreeChanges \/ GuidedChanges \/ Copy \/ Fails

SpecRaft == Init /\ [][NextRaft]_vars
SpecFree == Init /\ [][NextFree]_vars
SpecGuided == Init /\ [][NextGuided]_vars
SpecCopy == Init /\ [][NextCopy]_vars
SpecFails == Init /\ [][NextFails]_vars
Spec == Init /\ [][Next]_vars

\* Servers differ only by their role in the first configuration, and no action orders them.
Symmetric == {p \in Permutations(Server) :
                 \A s \in Server : (s \in InitVoters <=> p[s] \in InitVoters) /\ (s \in InitLearners <=> p[s] \in InitLearners)}
=============================================================================
