//! The models of `orbitkv lab` against their published figures, row by row: with the node's own types as the
//! only ones that decide anything, a figure that is off is a policy that is off.

mod calls;
mod command;
mod survival;
mod vectors;
