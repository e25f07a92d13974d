"""SASRec, GRU4Rec and popularity, their losses, their data and their training: what `train_sasrec.py` is made of."""
