from setuptools import find_packages, setup

setup(name="reinforce", version="0.0.1", packages=find_packages(), install_requires=["numpy"])
