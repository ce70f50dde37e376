//! What a commit of one node changed that another one must hear of.
