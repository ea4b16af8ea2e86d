pub mod cgroup_path;
