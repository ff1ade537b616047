"""Jobs: results of a growing corpus, kept up to date.

A job file (`jobfile`) says which rows come in and which models are made of them. A run
(`running`) looks at the input and brings in what is new, changed or gone (`intake`), makes or
updates the models (`kinds`), asks the gates (`gates`) and publishes everything by one step of
one ledger (`ledger`). Every run leaves a record (`record`).
"""
