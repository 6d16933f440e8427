from os.path import join

from conan import ConanFile
from conan.tools.build import check_min_cppstd
from conan.tools.files import copy

required_conan_version = ">=2.0"


class RopeConan(ConanFile):
    name = "rope"
    version = "0.3.0"
    description = "Rotary position embeddings on Eigen, header-only"
    license = "MIT"
    topics = ("rotary-position-embedding", "transformers", "attention", "eigen", "header-only")
    package_type = "header-library"
    settings = "os", "arch", "compiler", "build_type"
    no_copy_source = True

    def export_sources(self):
        root = join(self.recipe_folder, "..", "..", "..")
        copy(self, "LICENSE", root, self.export_sources_folder)
        copy(self, "include/rope/*.hpp", root, self.export_sources_folder)

    def requirements(self):
        self.requires("eigen/[>=3.4 <6]", transitive_headers=True)

    def validate(self):
        check_min_cppstd(self, 20)

    def package(self):
        copy(self, "LICENSE", self.source_folder, join(self.package_folder, "licenses"))
        copy(self, "*.hpp", join(self.source_folder, "include"), join(self.package_folder, "include"))

    def package_id(self):
        self.info.clear()

    def package_info(self):
        self.cpp_info.bindirs = []
        self.cpp_info.libdirs = []
        self.cpp_info.set_property("cmake_file_name", "rope")
        self.cpp_info.set_property("cmake_target_name", "rope::rope")
        self.cpp_info.set_property("pkg_config_name", "rope")
