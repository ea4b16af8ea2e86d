pub mod attribution;
