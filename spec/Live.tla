-------------------------------- MODULE Live --------------------------------
(***************************************************************************)
(* Progress: if servers stay up and messages arrive, a leader is elected,  *)
(* a learner catches up and is promoted, a removed replica is deleted.     *)
(*                                                                         *)
(* Raft makes progress only if elections do not collide without bound; the *)
(* code draws random timeouts and backs off.  Here no server starts an     *)
(* election while another candidate of the newest term may still win.      *)
(***************************************************************************)
EXTENDS Nyala

MayStillWin(x) ==
    /\ role[x] = "C" /\ \A s \in Server : Term(s) <= Term(x)
    /\ IsMajority({s \in Server : Term(s) < Term(x) \/ Voted(s) \in {Nil, x}}, Voters(Config(log[x])))

Try(s) ==
    /\ On("spread") => ~\E x \in Server : role[x] = "L" \/ MayStillWin(x)
    /\ StartElection(s, FALSE)

Granted == \E s, i \in Server, t \in Terms : GrantVote(s, t, i)
Led == \E i \in Server : BecomeLeader(i)
NoOp(i) == IsLeader(i) /\ commit[i] = 0 /\ log[i] = <<>> /\ ClientAppend(i, 0)
Heard(s) == \E t \in Terms :
    /\ On("tolearners") \/ s \in InitVoters
    /\ ReceiveNext(s, t) /\ <<log', commit', ack'>> # <<log, commit, ack>>
\* The master adds one replica, asks the leader to evict the surplus one, and deletes removed replicas.
Grow(i) == Members(NewestConfig) = InitVoters /\ Index(NewestConfig) = 0 /\ MasterAdds(i)
Deleted(s) ==
    \E n \in 1..Len(committed) :
        /\ Index(committed[n][1][2]) = n /\ s \notin Members(committed[n][1][2])
        /\ n = Index(NewestConfig)
        /\ ~On("deletesremoved") => Index(Config(log[s])) = n
        /\ Tombstone(s, n)
Copied(s) == \E t \in Terms : Sender(t) \notin {Nil, s} /\ s \in Members(Config(sent[t].log))
                              /\ CopyStart(s, Offer(Sender(t), dur[Sender(t)]), t)

LiveNext ==
    \/ \E s \in Server : Try(s) \/ Heard(s) \/ Deleted(s) \/ Copied(s) \/ CopyFinish(s)
    \/ Granted \/ Led
    \/ \E i \in Server : NoOp(i) \/ CommitMost(i) \/ Grow(i) \/ Promote(i) \/ MasterEvicts(i)

Fair ==
    /\ WF_vars(\E s \in Server : Try(s)) /\ WF_vars(Granted) /\ WF_vars(Led)
    /\ \A s \in Server : WF_vars(Heard(s)) /\ WF_vars(Deleted(s)) /\ WF_vars(Copied(s)) /\ WF_vars(CopyFinish(s))
    /\ WF_vars(\E i \in Server : NoOp(i)) /\ WF_vars(\E i \in Server : CommitMost(i))
    /\ WF_vars(\E i \in Server : Grow(i)) /\ WF_vars(\E i \in Server : Promote(i))
    /\ WF_vars(\E i \in Server : MasterEvicts(i))

LiveSpec == Init /\ [][LiveNext]_vars /\ Fair

LeaderElected == <>(\E s \in Server : IsLeader(s))
LearnerPromoted ==
    \A x \in Server : (x \in Learners(NewestConfig)) ~> (x \in Voters(NewestConfig) \/ x \notin Members(NewestConfig))
RemovedDeleted ==
    \A x \in Server : (x \in InitVoters /\ x \notin Members(NewestConfig)) ~> (data[x] = "T")
=============================================================================
