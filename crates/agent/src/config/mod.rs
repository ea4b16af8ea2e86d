//! Configuration: text becomes a validated [`Loaded`] exactly once, and what is wrong with it is
//! told with its place. Read in flow order: [`source`] (texts), [`yaml`] and [`node`] (trees with
//! places), [`expand`] (`${env:}`), [`layers`] (files and `--set` merged), [`typed`] (each part
//! parsed, all its problems), [`mod@load`] (the whole), [`pipelines`] (references and kinds),
//! [`diagnostic`] (the messages).

pub mod diagnostic;
mod effective;
pub mod expand;
pub mod layers;
pub mod load;
pub mod model;
pub mod node;
mod pipelines;
pub mod source;
pub mod typed;
pub mod yaml;

pub use load::{Component, Components, Input, Loaded, Report, load, load_texts};
