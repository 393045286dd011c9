"""Coverage: what no case shows, because a part did not run or because a value would agree whatever it is made of.

`gaps` are such values. Each is asked the same question, by `probe`: which cone of influence (`cones`) still agrees on
which other numbers (`samplers`, around breakpoints, and where others are decided, `decisions`)? `changes` says from
the files alone whether there may be any gap.

`unseen` goes through parts that may not run. `counterparts` says what stands for each in the other model, `conditions`
what decides upon it. `bodies` runs a pair of them as functions of what they capture; `traces` are both models with the
branches that cases take in place of their Ifs, and know branches that no run comes to the end of.
"""
