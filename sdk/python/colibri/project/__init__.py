# SPDX-License-Identifier: Apache-2.0
"""The project file ``colibri.toml``: a model, its boards, and what they are held to.

`model` says what a file may hold, `loader` reads one; docs/check.md explains it.
"""

from colibri.project.loader import PROJECT_FILE, load_project, project_path
from colibri.project.model import Project, ProjectBoard

__all__ = ["PROJECT_FILE", "Project", "ProjectBoard", "load_project", "project_path"]
